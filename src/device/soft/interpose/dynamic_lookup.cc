// Serves programs that open libibverbs.so.1 themselves: they get this library, which needs that
// one, so that dlsym() finds the functions of both. What is asked with dlvsym() of version
// IBVERBS_*, of whatever handle, is looked up from this library on, too.
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

using Open = void* (*)(const char*, int);

Open c_library_open() {
  static const auto open = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "dlopen"));
  return open;
}

// Null where the dynamic linker does not tell.
const char* own_path() {
  static const char* const path = [] {
    Dl_info info{};
    const bool known = dladdr(reinterpret_cast<void*>(&c_library_lookup), &info) != 0;
    return known ? info.dli_fname : nullptr;
  }();
  return path;
}

// A handle of this library; looking up in it also reaches libibverbs, which it needs.
void* own_handle() {
  static void* const handle =
      own_path() != nullptr ? c_library_open()(own_path(), RTLD_NOW | RTLD_NOLOAD) : nullptr;
  return handle;
}

// In whatever folder, and under what names packages bring copies of their own: libibverbs.so,
// libibverbs.so.1.14.44.0, libibverbs-1de1263b.so.1.14.48.0.
bool names_libibverbs(const char* file) {
  constexpr char kName[] = "libibverbs";
  constexpr char kSuffix[] = ".so";
  const char* slash = std::strrchr(file, '/');
  const char* rest = slash != nullptr ? slash + 1 : file;
  if (std::strncmp(rest, kName, sizeof(kName) - 1) != 0) return false;
  rest += sizeof(kName) - 1;
  if (*rest == '-') rest += 1 + std::strspn(rest + 1, "0123456789abcdef");
  if (std::strncmp(rest, kSuffix, sizeof(kSuffix) - 1) != 0) return false;
  rest += sizeof(kSuffix) - 1;
  return *rest == '\0' || (*rest == '.' && rest[std::strspn(rest, ".0123456789")] == '\0');
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

// The same for dlopen(), which looks for libraries where the caller has its own.
extern "C" __attribute__((used, visibility("hidden"))) Open verbena_dlopen_target(
    const char** file) {
  if (*file != nullptr && names_libibverbs(*file) && own_path() != nullptr) *file = own_path();
  return c_library_open();
}

}  // namespace verbena::soft::interpose

// dlvsym(handle, name, version) and dlopen(file, mode): ask the functions above, then jump to the C
// library's with the arguments in place.
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

  .symver verbena_dlopen, dlopen@@
  .globl verbena_dlopen
  .type verbena_dlopen, @function
verbena_dlopen:
  .cfi_startproc
  endbr64
  subq $24, %rsp
  .cfi_adjust_cfa_offset 24
  movq %rdi, (%rsp)
  movq %rsi, 8(%rsp)
  movq %rsp, %rdi
  call verbena_dlopen_target
  movq (%rsp), %rdi
  movq 8(%rsp), %rsi
  addq $24, %rsp
  .cfi_adjust_cfa_offset -24
  jmp *%rax
  .cfi_endproc
  .size verbena_dlopen, . - verbena_dlopen
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

  .symver verbena_dlopen, dlopen@@
  .globl verbena_dlopen
  .type verbena_dlopen, %function
verbena_dlopen:
  .cfi_startproc
  hint #34
  stp x29, x30, [sp, #-32]!
  .cfi_def_cfa_offset 32
  .cfi_offset 29, -32
  .cfi_offset 30, -24
  stp x0, x1, [sp, #16]
  add x0, sp, #16
  bl verbena_dlopen_target
  mov x9, x0
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  .cfi_restore 30
  .cfi_restore 29
  .cfi_def_cfa_offset 0
  br x9
  .cfi_endproc
  .size verbena_dlopen, . - verbena_dlopen
)");
#endif
