// Two processes that send each other tagged messages: one asks, the other answers.
//
//   cmake -B build && cmake --build build && build/message
#include "verbena/message.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>

#include "verbena/device.h"

using verbena::PostResult;

namespace {

constexpr uint64_t kRounds = 10'000;
constexpr uint64_t kTag = 7;

// What went wrong; empty: nothing. `other` reaches the other process, for the addresses alone.
std::string talk(int other, const verbena::JobSecret& secret, bool asks) {
  auto device = verbena::Device::open("soft0");
  if (!device.ok()) return device.status().message();
  auto domain = verbena::ProtectionDomain::create(*device);
  if (!domain.ok()) return domain.status().message();
  auto messenger = verbena::open_messenger(*device, *domain, secret);
  if (!messenger.ok()) return messenger.status().message();
  verbena::MessengerAddress address = (*messenger)->address();
  if (write(other, &address, sizeof(address)) < 0 || read(other, &address, sizeof(address)) <= 0) {
    return "no address of the other process";
  }
  const auto peer = (*messenger)->add_peer(address);
  if (!peer.ok()) return peer.status().message();

  uint64_t value = 0;
  const iovec piece{&value, sizeof(value)};
  for (uint64_t round = 0; round < 2 * kRounds; ++round) {
    if ((round % 2 == 0) == asks) {  // this side's turn
      ++value;
      PostResult sent = PostResult::kWouldBlock;
      while (sent == PostResult::kWouldBlock) {
        sent = (*messenger)
                   ->send({.peer = *peer,
                           .tag = kTag,
                           .pieces = {&piece, 1},
                           .flags = verbena::kMessageSilent});
        if (sent == PostResult::kWouldBlock) (*messenger)->progress();
      }
      if (sent == PostResult::kFailed) return (*messenger)->peer_status(*peer).message();
    } else {
      (*messenger)->receive({.source = *peer, .tag = kTag, .pieces = {&piece, 1}});
      verbena::MessageCompletion done[1];
      while ((*messenger)->poll(done) == 0) {
      }
      if (done[0].outcome != verbena::MessageOutcome::kOk) return "the other process has ended";
    }
  }
  if (asks) std::cout << value << " messages were sent and answered\n";
  return "";
}

}  // namespace

int main() {
  const verbena::JobSecret secret = verbena::JobSecret::random();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  const pid_t child = fork();
  const std::string failure = talk(ends[child == 0 ? 0 : 1], secret, child != 0);
  if (!failure.empty()) std::cerr << failure << '\n';
  if (child != 0) waitpid(child, nullptr, 0);
  return failure.empty() ? 0 : 1;
}
