// Draws what happens: lives, and rounds with right and with deliberately wrong requests.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/runtime.h"
#include "tests/soft_model/model.h"
#include "tests/soft_model/plan.h"

namespace verbena::soft_model {

struct Setting {
  uint32_t max_members = kMaxMembers;
  uint32_t rounds = 10;
  bool with_victim = false;
};

Life make_life(uint64_t seed, const Setting& setting);

class Generator {
 public:
  // Both outlive it.
  Generator(const Life& life, Model& model);
  // Carried out in the model when it returns.
  Round next();

 private:
  enum class Wrong : uint8_t;

  void prepare(uint32_t end);
  void draw_early_receives(bool is_breaking, uint32_t end);
  void draw_late_receives(uint32_t end);
  void draw_traffic(uint32_t end, uint32_t count);
  void draw_break(uint32_t end);
  void flush_receives(uint32_t end);
  void add(uint32_t end, Request request);

  Request right(uint32_t end);
  Request datagram(uint32_t end);
  Request counting(uint32_t end);
  Request atomic(uint32_t end);
  Request transfer(uint32_t end, ibv_wr_opcode opcode);
  bool make_wrong(Wrong wrong, uint32_t end, Request& request);
  void read_landing_or_source(uint32_t end, uint32_t size_bytes, Request& request);
  std::vector<Piece> pieces(uint64_t offset, uint32_t area_bytes, uint32_t size_bytes,
                            bool may_overlap);
  uint32_t size_up_to(uint32_t limit_bytes);
  uint32_t message_limit(uint32_t end) const;
  bool chance(uint64_t one_in) { return random_.below(one_in) == 0; }

  const Life& life_;
  Model& model_;
  Random random_;
  uint32_t number_ = 0;
  std::vector<bool> broken_;
  std::vector<uint32_t> tickets_;
  std::vector<uint32_t> unsignaled_;
  Round round_;
};

}  // namespace verbena::soft_model
