// What the processor and the operating system let a process use.
#pragma once

// Whether AMX-TILE, -BF16 and -INT8 are available. Linux withholds the tile registers from a process that has not requested
// them; this requests them, once for all its present and future threads.
bool ask_for_tiles();
