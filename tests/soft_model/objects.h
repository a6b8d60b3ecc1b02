// The verbs objects of one member, and its memory.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/device/verbs_for_test.h"
#include "tests/soft_model/plan.h"
#include "tests/soft_model/world.h"

namespace verbena::soft_model {

struct EndObjects {
  ibv_qp* qp = nullptr;
  ibv_qp_ex* batch = nullptr;  // posts by ibv_wr_start()
  ibv_mr* source = nullptr;
  ibv_mr* landing = nullptr;
  ibv_mr* tickets = nullptr;
  ibv_mr* receives = nullptr;
  ibv_mr* target = nullptr;
  ibv_mr* read_only = nullptr;  // these two are of the target, too
  ibv_mr* write_only = nullptr;
  ibv_mw* window = nullptr;
  uint32_t window_key = 0;
  uint32_t gone_key = 0;
};

class Objects {
 public:
  Objects(const Life& life, uint32_t member);
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  ~Objects();

  EndObjects& end(uint32_t index) { return ends_[index]; }
  ibv_cq* cq(size_t index) const { return cqs_[index]; }
  size_t cq_count() const { return cqs_.size(); }
  ibv_srq* srq() const { return srq_; }
  ibv_mr* shared_receives() const { return shared_receives_; }
  ibv_comp_channel* channel() const { return channel_; }
  std::byte* arena() const { return arena_; }
  const test::Node& node() const { return node_; }
  ibv_ah* handle() const { return handle_; }

  void describe(Notice& notice) const;
  void connect(uint32_t end, uint32_t peer_number);
  void to_error(uint32_t end);
  // Back to RESET, with another memory window.
  void reset(uint32_t end);
  void register_target(uint32_t end);
  ibv_mr* register_bytes(uint64_t offset, uint64_t length_bytes, unsigned access);
  void deregister(ibv_mr* region);
  // The key for own use of a piece of the arena.
  uint32_t local_key(uint32_t end, const Piece& piece) const;

 private:
  void make_queues();
  void make_end(uint32_t index);
  void modify(ibv_qp* qp, ibv_qp_attr attributes, int mask);
  void to_state(ibv_qp* qp, ibv_qp_state state);
  bool is_own(uint32_t end) const { return life_.ends[end].member == member_; }

  const Life& life_;
  const uint32_t member_;
  test::Node node_;
  uint16_t lid_ = 0;
  std::byte* arena_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  std::vector<ibv_cq*> cqs_;
  ibv_srq* srq_ = nullptr;
  ibv_ah* handle_ = nullptr;
  ibv_mr* word_ = nullptr;
  ibv_mr* shared_receives_ = nullptr;
  std::vector<EndObjects> ends_;
};

inline constexpr uint32_t kQkey = 0x1234;

}  // namespace verbena::soft_model
