// program: runs kernels in one call, in the order and with the parameters of an earlier step or of calls that waited.
//
// Algorithm  a loop. Only a return separates two kernels of a model, so the pool's threads are still spinning, and no
//            interpreter reads its objects from cold caches
// Floor      two loads and an indirect call, 5 ns per kernel; from Python the same takes 25 us
#include "api.h"
#include "isa/float_mode.h"

void run_program(Pool* pool, const ProgramParams* p) {
  const FlushDenormals meanwhile;  // the kernels find the mode set: the register is written once per step
  for (int32_t i = 0; i < p->count; i++) p->calls[i].kernel(pool, p->calls[i].params);
}
