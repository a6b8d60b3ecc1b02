// A distributed shuffle: words are counted by two executors, each of which gets all occurrences of
// the words that are its own, from two executors that have a part of the text each.
//
//   cmake -B build && cmake --build build && build/shuffle
//
// The executors are threads here, so that one command shows it all; with a process or a host for
// each, nothing in them would change but the addresses and devices.
#include "verbena/apps/shuffle.h"

#include <cstdint>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using verbena::Status;

constexpr int64_t kTenSecondsNs = 10'000'000'000;
constexpr uint32_t kReceivers = 2;
constexpr const char* kTexts[] = {"the cat and the dog and the bird",
                                  "a dog and a cat and the end"};
constexpr uint32_t kSenders = std::size(kTexts);

struct Job {
  verbena::JobSecret secret = verbena::JobSecret::random();
  std::vector<verbena::ControlListener> listeners;  // one of each receiver
  std::map<std::string, int> counts[kReceivers];
};

Status count_words(Job& job, uint32_t number) {
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(
      auto receiver,
      verbena::ShuffleReceiver::expose(
          device, domain, {.receiver = number, .receivers = kReceivers, .senders = kSenders}));
  VERBENA_RETURN_IF_ERROR(receiver->accept_all(job.listeners[number], kTenSecondsNs));
  for (;;) {
    VERBENA_ASSIGN_OR_RETURN(const auto span, receiver->wait_next());
    if (span.empty()) return Status::ok_status();  // all senders have finished
    span.for_each([&](std::string_view word, bool) { ++job.counts[number][std::string(word)]; });
    receiver->release(span);
  }
}

Status send_words(const Job& job, uint32_t number) {
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  std::vector<verbena::ControlConnection> receivers;
  for (const auto& listener : job.listeners) {
    VERBENA_ASSIGN_OR_RETURN(
        auto control, verbena::ControlConnection::connect("127.0.0.1", listener.port(), job.secret,
                                                          kTenSecondsNs));
    receivers.push_back(std::move(control));
  }
  VERBENA_ASSIGN_OR_RETURN(
      auto sender,
      verbena::open_shuffle_sender(device, domain, std::move(receivers), {.sender = number}));
  std::istringstream text(kTexts[number]);
  for (std::string word; text >> word;) {
    const uint32_t partition = verbena::partition_of(verbena::shuffle_hash(word), kReceivers);
    VERBENA_RETURN_IF_ERROR(sender->put(partition, word));
  }
  return sender->finish();
}

Status run() {
  Job job;
  for (uint32_t i = 0; i < kReceivers; ++i) {
    VERBENA_ASSIGN_OR_RETURN(auto listener,
                             verbena::ControlListener::listen("127.0.0.1", 0, job.secret));
    job.listeners.push_back(std::move(listener));
  }
  Status statuses[kReceivers + kSenders];
  {
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < kReceivers; ++i) {
      threads.emplace_back([&, i] { statuses[i] = count_words(job, i); });
    }
    for (uint32_t i = 0; i < kSenders; ++i) {
      threads.emplace_back([&, i] { statuses[kReceivers + i] = send_words(job, i); });
    }
  }
  for (const Status& status : statuses) VERBENA_RETURN_IF_ERROR(status);
  std::map<std::string, int> all = job.counts[0];
  for (const auto& [word, count] : job.counts[1]) {
    if (!all.emplace(word, count).second) std::cout << word << " came to both executors\n";
  }
  for (const auto& [word, count] : all) std::cout << word << ": " << count << '\n';
  return Status::ok_status();
}

}  // namespace

int main() {
  const Status status = run();
  if (!status.ok()) std::cerr << "shuffle: " << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
