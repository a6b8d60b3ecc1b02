// System calls and a stack of their own for code that runs while pages of the process are in
// flight.
//
// Such code may touch nothing but its registers, its own stack and memory set aside for it: not
// errno (thread-local memory), no procedure linkage table (it lies in writable data), no hook of a
// program on mmap. So the kernel is called directly, and errors come back as negative errno values.
#pragma once

#include <cstdint>

// For functions that run in flight: the sanitizers' own memory accesses would go astray there, and
// calls of other functions must not go through the linkage table of a shared library.
#define VERBENA_IN_FLIGHT \
  __attribute__((no_sanitize("address", "thread", "undefined"), visibility("hidden")))

namespace verbena::soft {

#if defined(__x86_64__)

VERBENA_IN_FLIGHT inline long raw_syscall(long number, long a = 0, long b = 0, long c = 0,
                                          long d = 0, long e = 0, long f = 0) {
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

// Runs body(argument) with the stack that ends at `stack_top` (a multiple of 16) and comes back.
VERBENA_IN_FLIGHT inline void call_on_stack(void (*body)(void*), void* argument, void* stack_top) {
  asm volatile(
      "movq %%rsp, %%rbx\n\t"
      "movq %[top], %%rsp\n\t"
      "callq *%[body]\n\t"
      "movq %%rbx, %%rsp"
      : "+D"(argument)
      : [top] "r"(stack_top), [body] "r"(body)
      : "rax", "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3",
        "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
        "xmm15", "memory", "cc");
}

#elif defined(__aarch64__)

VERBENA_IN_FLIGHT inline long raw_syscall(long number, long a = 0, long b = 0, long c = 0,
                                          long d = 0, long e = 0, long f = 0) {
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc #0"
               : "+r"(x0)
               : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
               : "memory", "cc");
  return x0;
}

VERBENA_IN_FLIGHT inline void call_on_stack(void (*body)(void*), void* argument, void* stack_top) {
  register void* x0 asm("x0") = argument;
  asm volatile(
      "mov x19, sp\n\t"
      "mov sp, %[top]\n\t"
      "blr %[body]\n\t"
      "mov sp, x19"
      : "+r"(x0)
      : [top] "r"(stack_top), [body] "r"(body)
      : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
        "x15", "x16", "x17", "x18", "x19", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7",
        "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20",
        "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "memory",
        "cc");
}

#else
#error "port raw_syscall() and call_on_stack() to this processor"
#endif

// The kernel's way to say "error": the last page of addresses.
VERBENA_IN_FLIGHT inline bool is_error(long result) { return result < 0 && result >= -4095; }

VERBENA_IN_FLIGHT inline long as_argument(const void* pointer) {
  return static_cast<long>(reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace verbena::soft
