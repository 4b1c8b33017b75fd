// Runs kernels of a library for another process, whose heap (shared_heap.cpp) it maps at the same address, so that
// parameters and their pointers are valid in both.
//
// Usage: driver LIBRARY FILE, where FILE is the heap's descriptor. Each line of the input is a command, answered by a line:
//   name                   the library's name
//   size STRUCT            the bytes of a struct of api.h
//   pool THREADS           its address
//   close POOL             ok
//   call KERNEL POOL PARAMS   ok
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

struct PoolParams {  // api.h
  const int32_t* cpus;
  int32_t threads, pin_caller, spin_us;
};

static void* library;

template <class Function> static Function* function(const std::string& name) {
  void* found = dlsym(library, name.c_str());
  if (!found) std::cerr << "the library has no " << name << '\n', std::exit(3);
  return (Function*)found;
}

static void* make_pool(int threads) {
  const std::vector<int32_t> cpus(threads, -1);
  const PoolParams params{cpus.data(), threads, 0, 50};
  return function<void*(const PoolParams*)>("pool_create")(&params);
}

int main(int, char** arguments) {
  constexpr uintptr_t BASE = 0x200000000000;
  constexpr size_t SIZE = size_t(64) << 30;
  const int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file = std::atoi(arguments[2]);
  if (mmap((void*)BASE, SIZE, PROT_READ | PROT_WRITE, flags, file, 0) != (void*)BASE) return std::perror("mmap"), 3;
  library = dlopen(arguments[1], RTLD_NOW);
  if (!library) return std::cerr << dlerror() << '\n', 3;
  for (std::string command, name; std::cin >> command;) {
    uintptr_t pool, params;
    int threads;
    if (command == "name") std::cout << function<const char*()>("isa_name")();
    else if (command == "size" && std::cin >> name) std::cout << function<int32_t(const char*)>("struct_size")(name.c_str());
    else if (command == "pool" && std::cin >> threads) std::cout << (uintptr_t)make_pool(threads);
    else if (command == "close" && std::cin >> pool) function<void(void*)>("pool_destroy")((void*)pool), std::cout << "ok";
    else if (command == "call" && std::cin >> name >> pool >> params)
      function<void(void*, const void*)>(name)((void*)pool, (const void*)params), std::cout << "ok";
    else return std::cerr << "not a command: " << command << '\n', 3;
    std::cout << std::endl;
  }
}
