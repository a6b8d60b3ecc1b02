// The reference model: what verbs do, without any device. It carries out requests one after
// another, and knows afterwards what each member's memory holds and what each queue pair gets.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "tests/soft_model/plan.h"

namespace verbena::soft_model {

using Bytes = std::vector<std::byte>;

// A completion of a send queue.
struct Sent {
  uint64_t id = 0;
  ibv_wc_status status = IBV_WC_SUCCESS;
  ibv_wc_opcode opcode = IBV_WC_SEND;
  uint32_t size_bytes = 0;  // of a READ or an atomic, as byte_len
  bool signaled = false;
};

// What meets a receive.
struct Message {
  ibv_wc_status status = IBV_WC_SUCCESS;
  ibv_wc_opcode opcode = IBV_WC_RECV;
  unsigned flags = 0;  // ibv_wc_flags
  uint32_t immediate = 0;
  uint32_t byte_len = 0;
  Bytes bytes = {};
};

struct EndModel {
  uint64_t next_id = 0;
  std::deque<Sent> sent = {};  // also what is not signaled
  // By the queue pair that they come from, each in order.
  std::map<uint32_t, std::deque<Message>> arriving = {};
  // Of the receives of its own: how many were posted, and how many of these are used up.
  uint64_t posted = 0;
  uint64_t used = 0;
  bool window_open = false;
};

struct SharedModel {
  uint64_t posted = 0;
  uint64_t used = 0;
};

class Model {
 public:
  explicit Model(const Life& life);

  EndModel& end(uint32_t index) { return ends_[index]; }
  SharedModel& shared(uint32_t member) { return shared_[member]; }
  Bytes& image(uint32_t member) { return images_[member]; }
  uint64_t word(uint32_t member, uint64_t offset) const;

  // New bytes in all sources, and nothing left of the last round's predictions.
  void begin_round(uint32_t round);
  // Carries out a request of a queue pair as request.status says.
  void carry_out(uint32_t end, const Request& request);
  // A request of the owner's own, which no peer takes part in.
  void carry_out_alone(uint32_t end, ibv_wr_opcode opcode);
  // Receives that a message would find.
  uint64_t receives_left(uint32_t end) const;
  // How much the next receive of a queue pair holds.
  uint32_t next_capacity(uint32_t end) const;
  // Back to as it was made; shared receives stay.
  void reset(uint32_t end);
  // A message has come into these buffers.
  void deliver(uint32_t member, const Receive& receive, uint32_t offset, const Bytes& bytes);

 private:
  Bytes gather(uint32_t member, const Request& request) const;
  void scatter(uint32_t member, const Request& request, const Bytes& bytes);
  uint64_t exchange_word(uint32_t member, const Request& request);
  void arrive(uint32_t from, uint32_t to, Message message);

  const Life& life_;
  std::vector<EndModel> ends_;
  std::vector<SharedModel> shared_;
  std::vector<Bytes> images_;
};

bool consumes_receive(ibv_wr_opcode opcode);
ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode);

}  // namespace verbena::soft_model
