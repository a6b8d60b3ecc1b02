// The queue pairs of a requesting thread, or of a node's dispatcher.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "src/base/assert.h"
#include "src/bench/run/node_job.h"
#include "src/rpc/negotiation.h"
#include "verbena/connection.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// All use the design that was agreed on over the first connection. They are made without knowing
// it when the program is compiled: targets() gives them their types back.
class RequestingConnections {
 public:
  // Connects to one responding thread after another. `number` is that of the requesting thread in
  // job.connections().
  Status connect(const NodeJob& job, uint32_t number);

  const rpc::DesignAgreement& agreed() const { return agreed_; }
  // Of messages, by a transport that loses some.
  uint64_t resent() const;

  // One per peer, in their order; all are a `Typed`, the requester of the agreed design.
  template <typename Typed>
  std::vector<Typed*> targets() const {
    std::vector<Typed*> all;
    all.reserve(requesters_.size());
    for (const auto& requester : requesters_) {
      all.push_back(dynamic_cast<Typed*>(requester.get()));
      VERBENA_ASSERT(all.back() != nullptr);
    }
    return all;
  }

 private:
  rpc::DesignAgreement agreed_;
  std::deque<ControlConnection> controls_;  // outlive their requesters
  std::vector<std::unique_ptr<Requester>> requesters_;
};

}  // namespace verbena::bench
