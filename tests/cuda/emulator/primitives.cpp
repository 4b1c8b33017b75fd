// The primitives that are no templates.
#include "launch.h"

namespace emulator __attribute__((visibility("hidden"))) {

// ---- asynchronous copies ------------------------------------------------------------------------------------------

static void finish(const Copy& copy) {
  if (copy.valid)
    memcpy(copy.to, copy.from, 16);
  else
    memset(copy.to, 0, 16);
}
void copy_async(void* to, const void* from, bool valid, const Place& here) {
  if ((uintptr_t(to) | (valid ? uintptr_t(from) : 0)) % 16) fail(here, "an asynchronous copy is not aligned to 16 bytes");
  if (!running.late_copies) return finish({to, from, valid});
  memset(to, 0xff, 16);
  current().open.push_back({to, from, valid});
}
void copy_commit() {
  current().groups.push_back(std::move(current().open));
  current().open.clear();
}
void copy_wait(size_t pending) {
  auto& groups = current().groups;
  while (groups.size() > pending) {
    for (const Copy& copy : groups.front()) finish(copy);
    groups.erase(groups.begin());
  }
}

// ---- matrices of a warp ---------------------------------------------------------------------------------------------

void load_matrices(uint32_t (&fragment)[4], const void* row, bool transposed, const Place& here) {
  struct Lane {
    const uint16_t* row;
    uint32_t fragment[4];
  } mine{static_cast<const uint16_t*>(row), {}};
  if (uintptr_t(row) % 16) fail(here, "a matrix row is not aligned to 16 bytes");
  auto work = [transposed](void** brought) {
    auto lane = [&](int i) -> Lane& { return *static_cast<Lane*>(brought[i]); };
    for (int matrix = 0; matrix < 4; matrix++) {
      int hits[8] = {}, most = 0;
      for (int i = 0; i < 8; i++) {
        int& bank = hits[uintptr_t(lane(matrix * 8 + i).row) / 16 % 8];
        most = ++bank > most ? bank : most;
      }
      state.stats.matrix_loads++;
      state.stats.bank_conflicts += most - 1;
      for (int i = 0; i < 32; i++) {
        int a = i / 4, b = i % 4 * 2;
        auto at = [&](int r, int c) { return uint32_t(lane(matrix * 8 + r).row[c]); };
        lane(i).fragment[matrix] = transposed ? at(b, a) | at(b + 1, a) << 16 : at(a, b) | at(a, b + 1) << 16;
      }
    }
  };
  meet(~0u, transposed ? Meeting::LOAD_MATRICES_TRANSPOSED : Meeting::LOAD_MATRICES, here, &mine, work);
  memcpy(fragment, mine.fragment, sizeof fragment);
}

}  // namespace emulator
