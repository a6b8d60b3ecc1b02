// The other side of a connection, in this process or in another one: the same test runs with both.
//
// It owns a device, a queue pair and buffers, and does what the test tells it.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {

enum class Place { kThisProcess, kOtherProcess };

struct ResponderOptions {
  unsigned access = kAllAccess;  // of the queue pair
  uint32_t recv_depth = 128;
  uint32_t srq_depth = 0;  // 0: without a shared receive queue
  bool with_channel = false;
};

// Part of a responder's buffer.
struct Part {
  uint32_t buffer = 0;
  uint32_t offset = 0;
  uint32_t length_bytes = 0;
};

class Responder {
 public:
  struct Memory {
    uint64_t address;
    uint32_t key;
  };

  explicit Responder(Place place, const ResponderOptions& options = {});
  ~Responder();

  QueuePairAddress address();
  void connect(const QueuePairAddress& peer, const ReliabilityOptions& options = {});
  // Both directions.
  void connect(End& end, const ReliabilityOptions& options = {});

  // Buffers are numbered from 0 in the order in which they are added. One of another protection
  // domain is registered, but not for this queue pair.
  Memory add_buffer(size_t size_bytes, unsigned access = kAllAccess, bool other_domain = false);
  void deregister(uint32_t buffer);
  void fill(const Part& part, uint64_t seed);
  bool has_pattern(const Part& part, uint64_t seed);
  uint64_t load(uint32_t buffer, uint32_t offset);
  void store(uint32_t buffer, uint32_t offset, uint64_t value);

  int post_receive(uint64_t id, const std::vector<Part>& parts);
  // Waits for at most 16 completions.
  std::vector<ibv_wc> wait_for(size_t count);
  ibv_wc wait_for_one();
  bool is_empty();
  int send(uint64_t id, const std::vector<Part>& parts, unsigned flags = IBV_SEND_SIGNALED);

  ibv_qp_state state();
  std::optional<ibv_event_type> wait_for_event();
  bool has_event();
  void to_error();
  // RESET and INIT again; connect() comes next.
  void reset();
  void destroy_queue_pair();
  // Ends the responder's process; `signal` 0: in order.
  void end(int signal);

  pid_t pid() const;

 private:
  struct Command;
  struct Reply;
  class Actor;
  friend struct ResponderRole;
  Reply run(const Command& command);

  std::unique_ptr<Actor> actor_;
  std::optional<Child> child_;
};

}  // namespace verbena::soft_test
