// Both ends of one control connection in this process, made once: a target sends its input through
// it, as a peer would, and what reads frames takes it from the other end.
#pragma once

#include <utility>

#include "src/base/runtime.h"
#include "tests/fuzz/fuzz_target.h"
#include "verbena/connection.h"

namespace verbena::fuzz {

inline constexpr int64_t kTimeoutNs = 60'000'000'000;

struct ConnectionPair {
  ControlConnection peer;
  ControlConnection own;
};

inline ConnectionPair make_connection_pair() {
  const JobSecret secret = JobSecret::random();
  Result<ControlListener> listener = ControlListener::listen("127.0.0.1", 0, secret);
  require(listener.ok(), listener.status().message());
  Result<ControlConnection> peer = Status(StatusCode::kInternal, "not connected yet");
  Thread thread = start_thread("peer", [&] {
    peer = ControlConnection::connect("127.0.0.1", listener->port(), secret, kTimeoutNs);
  });
  Result<ControlConnection> own = listener->accept(kTimeoutNs);
  thread.join();
  require(peer.ok(), peer.status().message());
  require(own.ok(), own.status().message());
  return {.peer = std::move(*peer), .own = std::move(*own)};
}

inline ConnectionPair& connection_pair() {
  static ConnectionPair pair = make_connection_pair();
  return pair;
}

}  // namespace verbena::fuzz
