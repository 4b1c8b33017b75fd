// What the processor and the operating system let a process use.
#pragma once

// Whether there are AMX-TILE, -BF16 and -INT8. Linux keeps the registers of tiles from a process that has not asked for
// them: this asks, once for all its threads, those to come included.
bool ask_for_tiles();
