// The nodes of one point, seen from their coordinator: tells all of them something, and waits for
// the answers of all without a core of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/bench/experiment/topology.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/node_pool.h"
#include "verbena/status.h"

namespace verbena::bench {

// What the coordinator of a point needs of its nodes, wherever they are.
class PointNodes {
 public:
  using Take = std::function<void(uint32_t number, const Message& message)>;

  virtual ~PointNodes() = default;
  virtual uint32_t size() const = 0;
  virtual const Hello& hello(uint32_t number) const = 0;
  // The nodes' processes on this host.
  virtual std::vector<pid_t> processes() const = 0;

  virtual Status tell(uint32_t number, const Message& message) = 0;
  Status tell_all(const Message& message);
  // Waits for this answer of every node; `take` sees each. The first failure ends it, also a node
  // that gives no sign of life for `stall_ns`; nodes give one every kAliveNs.
  virtual Status collect(MessageKind kind, int64_t timeout_ns, uint64_t stall_ns,
                         const Take& take) = 0;
};

class NodeGroup final : public PointNodes {
 public:
  NodeGroup(std::vector<NodeLink*> nodes, const Wiring& wiring)
      : nodes_(std::move(nodes)), wiring_(wiring), done_(nodes_.size()) {}

  uint32_t size() const override { return static_cast<uint32_t>(nodes_.size()); }
  const Hello& hello(uint32_t number) const override { return nodes_[number]->hello(); }
  std::vector<pid_t> processes() const override;

  Status tell(uint32_t number, const Message& message) override;
  Status collect(MessageKind kind, int64_t timeout_ns, uint64_t stall_ns,
                 const Take& take) override;
  // Ends the point at all nodes that live. Afterwards failure() knows what they had to say.
  void tear_down();

  // The best explanation of what went wrong: the death of a node before what others saw of it.
  Status failure();
  // Whether every node answered the tear-down.
  bool nodes_remain() const { return nodes_remain_; }

 private:
  // "requester node 3 of 4 (process 4711)".
  std::string name_of(uint32_t number) const;
  void note_failure(uint32_t number, const Status& status);
  // "; the responder (process 4711) is stopped ..." of all that are; else empty.
  std::string stopped_text() const;
  Status first_failure();

  std::vector<NodeLink*> nodes_;
  const Wiring& wiring_;
  std::vector<bool> done_;
  Status first_failure_;
  Status first_cause_;   // other than that a peer is gone
  bool silent_ = false;  // a node has given no sign of life
  bool nodes_remain_ = true;
};

}  // namespace verbena::bench
