// A distributed shuffle: words are counted by two executors, each of which gets all occurrences of
// the words that are its own, from two executors that have a part of the text each.
//
//   cmake -B build && cmake --build build && build/shuffle
//
// The executors are threads here, so that one command shows it all; with a process or a host for
// each, nothing in them would change but the addresses and devices.
#include "verbena/apps/shuffle.h"

#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

constexpr uint32_t kExecutors = 2;  // of either kind
constexpr int64_t kTenSecondsNs = 10'000'000'000;
constexpr const char* kTexts[kExecutors] = {"the cat and the dog and the bird",
                                            "a dog and a cat and the end"};

// What fails ends the program here; a service would go on with another shuffle.
void must(const verbena::Status& status) {
  if (status.ok()) return;
  std::cerr << "shuffle: " << status.message() << '\n';
  std::quick_exit(1);
}
template <typename T>
T must(verbena::Result<T> result) {
  must(result.status());
  return std::move(*result);
}

int main() {
  const auto secret = verbena::JobSecret::random();
  const auto device = must(verbena::Device::open("soft0"));
  const auto domain = must(verbena::ProtectionDomain::create(device));
  std::vector<verbena::ControlListener> listeners;  // one of each receiver
  for (uint32_t i = 0; i < kExecutors; ++i) {
    listeners.push_back(must(verbena::ControlListener::listen("127.0.0.1", 0, secret)));
  }
  std::map<std::string, int> counts[kExecutors];

  const auto count_words = [&](uint32_t number) {
    auto receiver = must(verbena::ShuffleReceiver::expose(
        device, domain, {.receiver = number, .receivers = kExecutors, .senders = kExecutors}));
    must(receiver->accept_all(listeners[number], kTenSecondsNs));
    for (;;) {
      const auto span = must(receiver->wait_next());
      if (span.empty()) return;  // all senders have finished
      span.for_each([&](std::string_view word, bool) { ++counts[number][std::string(word)]; });
      receiver->release(span);
    }
  };
  const auto send_words = [&](uint32_t number) {
    std::vector<verbena::ControlConnection> receivers;
    for (const auto& listener : listeners) {
      receivers.push_back(must(verbena::ControlConnection::connect("127.0.0.1", listener.port(),
                                                                   secret, kTenSecondsNs)));
    }
    auto sender = must(
        verbena::open_shuffle_sender(device, domain, std::move(receivers), {.sender = number}));
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
