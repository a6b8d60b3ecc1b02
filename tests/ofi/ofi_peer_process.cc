// The others of ofi_kill_test: ofi_peer_process FOLDER NUMBER VICTIM. Exchanges numbers until the
// folder has a file `end`, and everything that involves the victim has ended.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "tests/ofi/exchange.h"

int main(int argc, char** argv) {
  using verbena::ofi_test::Exchange;
  if (argc != 4) return 2;
  const auto victim = static_cast<uint32_t>(std::atoi(argv[3]));
  const auto exchange =
      std::make_unique<Exchange>(argv[1], static_cast<uint32_t>(std::atoi(argv[2])));
  if (const std::string wrong = exchange->open(); !wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    return 2;
  }
  while (!exchange->meet()) verbena::sleep_ns(1'000'000);
  verbena::Waiter waiter;
  for (uint32_t rounds = 0;; ++rounds) {
    exchange->step() ? waiter.progress() : waiter.idle();
    if (rounds % 64 == 0 && exchange->is_lost(victim) && exchange->outstanding(victim) == 0 &&
        std::filesystem::exists(exchange->end_file())) {
      return exchange->wrong() == 0 ? 0 : 1;
    }
  }
}
