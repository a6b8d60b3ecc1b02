// Serves programs that open libibverbs.so.1 themselves and take its functions with dlvsym(), as
// collective libraries do: what they ask of version IBVERBS_* is looked up from this library on.
#include <dlfcn.h>

#include <cstring>

#include "src/device/soft/interpose/installed.h"

namespace verbena::soft::interpose {
namespace {

using Lookup = void* (*)(void*, const char*, const char*);

Lookup c_library_lookup() {
  static const auto lookup = reinterpret_cast<Lookup>(dlsym(RTLD_NEXT, "dlvsym"));
  return lookup;
}

// A handle of this library; looking up in it also reaches libibverbs, which it needs.
void* own_handle() {
  static void* const handle = [] {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&c_library_lookup), &info) == 0)
      return static_cast<void*>(nullptr);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return handle;
}

}  // namespace

// Where the call goes, and with which handle: see below. dlvsym(RTLD_NEXT, ...) depends on the
// caller's address, so the C library must see the program as its caller and not this library.
extern "C" __attribute__((used, visibility("hidden"))) Lookup verbena_dlvsym_target(
    void** handle, const char* version) {
  constexpr char kVersionPrefix[] = "IBVERBS_";
  if (*handle != RTLD_NEXT && version != nullptr &&
      std::strncmp(version, kVersionPrefix, sizeof(kVersionPrefix) - 1) == 0) {
    if (void* own = own_handle(); own != nullptr) *handle = own;
  }
  return c_library_lookup();
}

}  // namespace verbena::soft::interpose

// dlvsym(handle, name, version): asks the function above, then jumps to the C library's with the
// arguments in place.
#if defined(__x86_64__)
asm(R"(
  .text
  .symver verbena_dlvsym, dlvsym@@
  .globl verbena_dlvsym
  .type verbena_dlvsym, @function
verbena_dlvsym:
  .cfi_startproc
  endbr64
  subq $40, %rsp
  .cfi_adjust_cfa_offset 40
  movq %rdi, 8(%rsp)
  movq %rsi, 16(%rsp)
  movq %rdx, 24(%rsp)
  leaq 8(%rsp), %rdi
  movq %rdx, %rsi
  call verbena_dlvsym_target
  movq 8(%rsp), %rdi
  movq 16(%rsp), %rsi
  movq 24(%rsp), %rdx
  addq $40, %rsp
  .cfi_adjust_cfa_offset -40
  jmp *%rax
  .cfi_endproc
  .size verbena_dlvsym, . - verbena_dlvsym
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .symver verbena_dlvsym, dlvsym@@
  .globl verbena_dlvsym
  .type verbena_dlvsym, %function
verbena_dlvsym:
  .cfi_startproc
  hint #34
  stp x29, x30, [sp, #-48]!
  .cfi_def_cfa_offset 48
  .cfi_offset 29, -48
  .cfi_offset 30, -40
  str x0, [sp, #16]
  stp x1, x2, [sp, #24]
  add x0, sp, #16
  mov x1, x2
  bl verbena_dlvsym_target
  mov x9, x0
  ldr x0, [sp, #16]
  ldp x1, x2, [sp, #24]
  ldp x29, x30, [sp], #48
  .cfi_restore 30
  .cfi_restore 29
  .cfi_def_cfa_offset 0
  br x9
  .cfi_endproc
  .size verbena_dlvsym, . - verbena_dlvsym
)");
#endif
