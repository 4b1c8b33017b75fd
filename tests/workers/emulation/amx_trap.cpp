// Runs AMX's instructions on a processor that has none: preloaded, it catches the SIGILL of each, does what the instruction
// does (amx_tiles.h) and goes on behind it. What runs is the library as it was compiled.
//
// amx.py has replaced CPUID and XGETBV in the copies of the libraries by instructions that are illegal, too: they are
// answered as the processor does, plus AMX. The permission for tiles is given by `syscall` below, as Linux gives it, and
// asked for: without it every instruction on tiles is a fault.
//
// PAGED_SERVE_TEST_AMX_REPORT names a file, to which a process appends how often it ran which instruction, and its fault.
#include <cpuid.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "amx_tiles.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr uint8_t REPLACED = 0xd6, AS_CPUID = 0x01;  // amx.py: CPUID, or XGETBV with a no-op behind it
constexpr int CPUID_BYTES = 2, XGETBV_BYTES = 3;
constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
constexpr int GENERAL[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
enum Kind { LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS, TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD, KINDS };
constexpr const char* NAMES[KINDS] = {"ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored",
                                      "tdpbf16ps", "tdpbssd",     "tdpbsud",  "tdpbusd",   "tdpbuud"};
enum Prefix { NONE, X66, XF3, XF2 };

constinit thread_local TileState tiles;
std::atomic<bool> permitted{false};
std::atomic<uint64_t> counts[KINDS];
struct sigaction others{};  // of the process itself, for what is no instruction of AMX

void report(const char* text) {
  const char* name = std::getenv("PAGED_SERVE_TEST_AMX_REPORT");
  const int file = name ? open(name, O_WRONLY | O_CREAT | O_APPEND, 0600) : 2;
  if (write(file, text, std::strlen(text)) < 0) abort();
  if (file != 2) close(file);
}

struct Instruction {
  Kind kind;
  int bytes;
  int first, second, third;  // tiles: of ModRM's reg and rm, and of vvvv
  char* address;             // of an operand in memory
  int64_t stride;            // the index register, scaled
};

// The operand in memory that ModRM at p describes, and how many bytes describe it.
void read_address(const greg_t* registers, const uint8_t* p, bool x, bool b, Instruction& found) {
  const int mod = p[0] >> 6, rm = p[0] & 7;
  const bool has_sib = rm == 4, is_relative = rm == 5 && mod == 0;  // to the next instruction, which follows at once
  const uint8_t sib = p[1];
  const int base = has_sib ? sib & 7 : rm, index = (sib >> 3 & 7) | x << 3;
  const bool has_base = mod != 0 || base != 5;
  const uint8_t* at = p + 1 + has_sib;
  int32_t displacement = 0;
  if (mod == 1) displacement = (int8_t)*at++;
  else if (mod == 2 || !has_base) std::memcpy(&displacement, at, 4), at += 4;
  found.address = (char*)(is_relative ? (int64_t)at : has_base ? registers[GENERAL[base | b << 3]] : 0) + displacement;
  found.stride = has_sib && index != 4 ? registers[GENERAL[index]] << (sib >> 6) : 0;
  found.bytes = (int)(at - p);
}

bool kind_of(int opcode, int prefix, uint8_t modrm, Kind& kind) {
  const bool in_register = modrm >> 6 == 3;
  const int reg = modrm >> 3 & 7;
  const bool has_sib = !in_register && (modrm & 7) == 4;
  if (opcode == 0x49 && prefix == NONE && modrm == 0xc0) return kind = TILERELEASE, true;
  if (opcode == 0x49 && prefix == NONE && !in_register && reg == 0) return kind = LDTILECFG, true;
  if (opcode == 0x49 && prefix == XF2 && in_register && (modrm & 7) == 0) return kind = TILEZERO, true;
  if (opcode == 0x4b && has_sib && (prefix == XF2 || prefix == X66)) return kind = TILELOADD, true;
  if (opcode == 0x4b && has_sib && prefix == XF3) return kind = TILESTORED, true;
  if (opcode == 0x5c && in_register && prefix == XF3) return kind = TDPBF16PS, true;
  constexpr Kind OF_BYTES[] = {TDPBUUD, TDPBUSD, TDPBSUD, TDPBSSD};
  if (opcode == 0x5e && in_register) return kind = OF_BYTES[prefix], true;
  return false;
}

// VEX.128.0F38.W0, with one of the three registers of ModRM and vvvv a tile.
bool decode(const greg_t* registers, const uint8_t* p, Instruction& found) {
  if (p[0] != 0xc4 || (p[1] & 0x1f) != 2 || (p[2] & 0x84) != 0) return false;
  if (!kind_of(p[3], p[2] & 3, p[4], found.kind)) return false;
  found.first = p[4] >> 3 & 7, found.second = p[4] & 7, found.third = ~(p[2] >> 3) & 7;
  found.stride = 0, found.address = nullptr, found.bytes = 1;
  if (p[4] >> 6 != 3) read_address(registers, p + 4, !(p[1] & 0x40), !(p[1] & 0x20), found);
  found.bytes += 4;
  return true;
}

void run(const Instruction& i) {
  if (!permitted) fault("tiles without the system's permission");
  counts[i.kind].fetch_add(1, std::memory_order_relaxed);
  switch (i.kind) {
    case LDTILECFG: return tiles.configure(i.address);
    case TILERELEASE: return tiles.release();
    case TILEZERO: return tiles.zero(i.first);
    case TILELOADD: return tiles.load(i.first, i.address, i.stride);
    case TILESTORED: return tiles.store(i.first, i.address, i.stride);
    case TDPBF16PS: return tiles.dot_bf16(i.first, i.second, i.third);
    case TDPBSSD: return tiles.dot_int8<int8_t, int8_t>(i.first, i.second, i.third);
    case TDPBSUD: return tiles.dot_int8<int8_t, uint8_t>(i.first, i.second, i.third);
    case TDPBUSD: return tiles.dot_int8<uint8_t, int8_t>(i.first, i.second, i.third);
    case TDPBUUD: return tiles.dot_int8<uint8_t, uint8_t>(i.first, i.second, i.third);
    case KINDS: break;
  }
}

void answer_cpuid(greg_t* registers) {
  const unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX];
  unsigned a, b, c, d;
  __cpuid_count(leaf, part, a, b, c, d);
  if (leaf == 7 && part == 0) d |= 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, -TILE, -INT8
  registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
}

void answer_xgetbv(greg_t* registers) {
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  registers[REG_RAX] = low | 3u << 17, registers[REG_RDX] = high;  // XTILECFG and XTILEDATA
}

int (*real_sigaction)(int, const struct sigaction*, struct sigaction*);

void on_illegal_instruction(int, siginfo_t*, void* context) {
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const uint8_t* at = (const uint8_t*)registers[REG_RIP];
  const uint8_t* const first = at;
  if (at[0] == REPLACED && at[1] == AS_CPUID) answer_cpuid(registers), at += CPUID_BYTES;
  else if (at[0] == REPLACED) answer_xgetbv(registers), at += XGETBV_BYTES;
  for (Instruction found; decode(registers, at, found); at += found.bytes) run(found);
  if (at == first) real_sigaction(SIGILL, &others, nullptr);  // it is met again, by the process's own handler
  registers[REG_RIP] = (greg_t)at;
}

[[gnu::constructor]] void begin() {
  real_sigaction = (decltype(real_sigaction))dlsym(RTLD_NEXT, "sigaction");
  struct sigaction action{};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  real_sigaction(SIGILL, &action, nullptr);
}

[[gnu::destructor]] void end() {
  char line[64];
  for (int kind = 0; kind < KINDS; kind++)
    if (const unsigned long count = counts[kind]) std::snprintf(line, sizeof line, "%s %lu\n", NAMES[kind], count), report(line);
}

}  // namespace

void fault(const char* what) {
  report("fault ");
  report(what);
  report("\n");
  abort();
}

// faulthandler takes SIGILL, too: its handler gets what is no instruction of AMX.
API int sigaction(int number, const struct sigaction* wanted, struct sigaction* before) {
  if (number != SIGILL) return real_sigaction(number, wanted, before);
  if (before) *before = others;
  if (wanted) others = *wanted;
  return 0;
}

API long syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  long a[6];
  for (long& argument : a) argument = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_arch_prctl && a[0] == REQUEST_PERMISSION && a[1] == TILE_DATA) return permitted = true, 0;
  register long fourth asm("r10") = a[3];
  register long fifth asm("r8") = a[4];
  register long sixth asm("r9") = a[5];
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(fourth), "r"(fifth), "r"(sixth)
               : "rcx", "r11", "memory");
  if (result >= -4095 && result < 0) return errno = (int)-result, -1;
  return result;
}
