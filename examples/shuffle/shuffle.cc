// A distributed shuffle: words are counted by two executors, each of which gets all occurrences of
// the words that are its own, from two executors that have a part of the text each.
//
//   cmake -B build && cmake --build build && build/shuffle
//
// The executors are threads here, so that one command shows it all; with a process or a host for
// each, nothing in them would change but the addresses and devices.
#include "verbena/apps/shuffle.h"

#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "verbena/must.h"

using verbena::must;

constexpr int64_t kTenSecondsNs = 10'000'000'000;
constexpr uint32_t kExecutors = 2;  // of either kind
constexpr const char* kTexts[kExecutors] = {"the cat and the dog and the bird",
                                            "a dog and a cat and the end"};

int main() {
  const auto secret = verbena::JobSecret::random();
  const auto device = must(verbena::Device::open("soft0"));
  const auto domain = must(verbena::ProtectionDomain::create(device));
  std::vector<verbena::ControlListener> listeners;  // one of each receiver
  std::vector<verbena::ShuffleAddress> addresses;
  for (uint32_t i = 0; i < kExecutors; ++i) {
    listeners.push_back(must(verbena::ControlListener::listen("127.0.0.1", 0, secret)));
    addresses.push_back({"127.0.0.1", listeners.back().port()});
  }
  std::map<std::string, int> counts[kExecutors];

  const auto count_words = [&](uint32_t number) {
    auto receiver = must(verbena::ShuffleReceiver::expose(
        device, domain, {.receiver = number, .receivers = kExecutors, .senders = kExecutors}));
    must(receiver->accept_all(listeners[number], kTenSecondsNs));
    for (auto span = must(receiver->wait_next()); !span.empty();  // until all senders finish
         span = must(receiver->wait_next())) {
      span.for_each([&](std::string_view word, bool) { ++counts[number][std::string(word)]; });
      receiver->release(span);
    }
  };
  const auto send_words = [&](uint32_t number) {
    auto sender =
        must(verbena::open_shuffle_sender(device, domain, addresses, secret, {.sender = number}));
    std::istringstream text(kTexts[number]);
    for (std::string word; text >> word;) {
      must(sender->put(verbena::partition_of(verbena::shuffle_hash(word), kExecutors), word));
    }
    must(sender->finish());
  };
  std::vector<std::jthread> threads;
  for (uint32_t number = 0; number < kExecutors; ++number) {
    threads.emplace_back(count_words, number);
    threads.emplace_back(send_words, number);
  }
  threads.clear();  // waits for all
  for (const auto& own : counts) {
    for (const auto& [word, count] : own) std::cout << word << ": " << count << '\n';
  }
}
