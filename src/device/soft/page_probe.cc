#include "src/device/soft/page_probe.h"

#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <mutex>
#include <type_traits>

// The table of probes, which the linker puts together. Offsets are from where they stand.
struct ProbeEntry {
  int32_t instruction;
  int32_t missing;  // where a probe that faults goes on
};
extern "C" {
// NOLINTBEGIN(readability-identifier-naming): the linker's names.
[[gnu::visibility("hidden")]] extern const ProbeEntry __start_verbena_probes[];
[[gnu::visibility("hidden")]] extern const ProbeEntry __stop_verbena_probes[];
// NOLINTEND(readability-identifier-naming)
}

namespace verbena::soft {
namespace {

constexpr size_t kProbedPageBytes = 4096;  // the smallest that there is

[[gnu::always_inline]] inline bool can_read(const std::byte* at) {
#if defined(__x86_64__)
  asm goto(
      "1: cmpb $0, %0\n"
      ".pushsection verbena_probes, \"a\", @progbits\n"
      ".balign 4\n"
      ".long 1b - .\n"
      ".long %l[missing] - .\n"
      ".popsection"
      :
      : "m"(*at)
      : "cc", "memory"
      : missing);
  return true;
missing:
  return false;
#elif defined(__aarch64__)
  asm goto(
      "1: ldrb wzr, [%0]\n"
      ".pushsection verbena_probes, \"a\", %%progbits\n"
      ".balign 4\n"
      ".word 1b - .\n"
      ".word %l[missing] - .\n"
      ".popsection"
      :
      : "r"(at)
      : "memory"
      : missing);
  return true;
missing:
  return false;
#else
  static_cast<void>(at);
  return true;
#endif
}

// Where others write meanwhile, their bytes stay. Of many pages that takes as long as to copy some
// of them, see can_overwrite().
[[gnu::always_inline]] inline bool can_write(std::byte* at) {
#if defined(__x86_64__)
  asm goto(
      "1: lock orb $0, %0\n"
      ".pushsection verbena_probes, \"a\", @progbits\n"
      ".balign 4\n"
      ".long 1b - .\n"
      ".long %l[missing] - .\n"
      ".popsection"
      :
      : "m"(*at)
      : "cc", "memory"
      : missing);
  return true;
missing:
  return false;
#elif defined(__aarch64__)
  asm goto(
      "1: ldxrb w9, [%0]\n"
      "2: stxrb w10, w9, [%0]\n"
      "cbnz w10, 1b\n"
      ".pushsection verbena_probes, \"a\", %%progbits\n"
      ".balign 4\n"
      ".word 1b - .\n"
      ".word %l[missing] - .\n"
      ".word 2b - .\n"
      ".word %l[missing] - .\n"
      ".popsection"
      :
      : "r"(at)
      : "w9", "w10", "memory"
      : missing);
  return true;
missing:
  return false;
#else
  static_cast<void>(at);
  return true;
#endif
}

// The same of what is about to be overwritten, where nobody else writes.
[[gnu::always_inline]] inline bool can_overwrite(std::byte* at) {
#if defined(__x86_64__)
  asm goto(
      "1: orb $0, %0\n"
      ".pushsection verbena_probes, \"a\", @progbits\n"
      ".balign 4\n"
      ".long 1b - .\n"
      ".long %l[missing] - .\n"
      ".popsection"
      :
      : "m"(*at)
      : "cc", "memory"
      : missing);
  return true;
missing:
  return false;
#else
  return can_write(at);
#endif
}

// Who handled the signals before.
struct sigaction handled_segv_before;
struct sigaction handled_bus_before;

uintptr_t place_of(const int32_t& offset) {
  return reinterpret_cast<uintptr_t>(&offset) + static_cast<uintptr_t>(intptr_t{offset});
}

auto& program_counter(ucontext_t& context) {
#if defined(__x86_64__)
  return context.uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  return context.uc_mcontext.pc;
#else
  static uintptr_t none;
  return none;
#endif
}

// What the program has for this signal, as the kernel would carry it out.
void hand_on(int signal, siginfo_t* info, void* context) {
  struct sigaction& before = signal == SIGSEGV ? handled_segv_before : handled_bus_before;
  const bool is_fault = info->si_code > 0;
  if (before.sa_handler == SIG_IGN && !is_fault) return;
  if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
    sigaction(signal, &before, nullptr);
    // A fault comes again when this handler returns.
    if (!is_fault) raise(signal);
    return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else {
    before.sa_handler(signal);
  }
}

void on_fault(int signal, siginfo_t* info, void* context) {
  auto& at = program_counter(*static_cast<ucontext_t*>(context));
  // One that a process sends may interrupt a probe.
  const bool is_fault = info->si_code > 0;
  for (const ProbeEntry* entry = __start_verbena_probes; is_fault && entry != __stop_verbena_probes;
       ++entry) {
    if (static_cast<uintptr_t>(at) != place_of(entry->instruction)) continue;
    at = static_cast<std::remove_reference_t<decltype(at)>>(place_of(entry->missing));
    return;
  }
  hand_on(signal, info, context);
}

void install(int signal, struct sigaction& before) {
  // First read, since the handler may be called at once.
  sigaction(signal, nullptr, &before);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_mask = before.sa_mask;
  // As the program's handler has it, which is called by this one.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | (before.sa_flags & (SA_NODEFER | SA_RESTART));
  sigaction(signal, &action, nullptr);
}

}  // namespace

void handle_probe_faults() {
  static std::once_flag once;
  std::call_once(once, [] {
    install(SIGSEGV, handled_segv_before);
    install(SIGBUS, handled_bus_before);
  });
}

namespace {

// Each page, and the last byte.
template <typename Probe>
[[gnu::always_inline]] inline bool all_are(std::byte* begin, size_t size_bytes, Probe&& probe) {
  for (size_t at = 0; at < size_bytes; at += kProbedPageBytes) {
    if (!probe(begin + at)) return false;
  }
  return probe(begin + size_bytes - 1);
}

}  // namespace

bool is_there(std::byte* begin, size_t size_bytes, bool writes) {
  if (writes) return all_are(begin, size_bytes, [](std::byte* at) { return can_overwrite(at); });
  if (size_bytes <= kProbedPageBytes) return can_read(begin) && can_read(begin + size_bytes - 1);
  return all_are(begin, size_bytes, [](std::byte* at) { return can_read(at); });
}

bool bring_in_for_writing(std::byte* begin, size_t size_bytes) {
  return all_are(begin, size_bytes, [](std::byte* at) { return can_write(at); });
}

}  // namespace verbena::soft
