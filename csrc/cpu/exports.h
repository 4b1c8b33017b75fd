// Declarations that every header of the C ABI needs.
#pragma once
#include <cstdint>

#define API extern "C" __attribute__((visibility("default")))

class Pool;
