#include "src/bench/run/interrupt.h"

#include <csignal>

namespace verbena::bench {

namespace {

std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler stores it");

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { caught_signal.store(signal, std::memory_order_relaxed); };
  // No SA_RESTART: a wait for the peer ends. Reset: the second Ctrl-C is for those who cannot wait.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void ignore_interrupts() { signal(SIGINT, SIG_IGN); }

bool interrupted() { return caught_signal.load(std::memory_order_relaxed) != 0; }

int interrupt_exit_code() { return 128 + caught_signal.load(std::memory_order_relaxed); }

}  // namespace verbena::bench
