// Lives: which queue pairs there are, and where their memory is.
#include "src/base/runtime.h"
#include "tests/soft_model/generator.h"

namespace verbena::soft_model {
namespace {

// Memory that peers reach begins at words, all other anywhere.
uint64_t take_place(Random& random, uint64_t& at, uint64_t size_bytes, bool aligned) {
  at += 1 + random.below(200);
  if (aligned) at = (at + 7) / 8 * 8;
  const uint64_t place = at;
  at += size_bytes;
  return place;
}

void lay_out(Random& random, Life& life) {
  constexpr uint64_t kBegin = 4096;
  life.slot_bytes = life.message_bytes + kGrhBytes + 4 * kMaxPieces;
  std::vector<uint64_t> at(life.members.size(), kBegin);
  for (EndPlan& end : life.ends) {
    uint64_t& next = at[end.member];
    end.places = {.source = take_place(random, next, life.area_bytes, false),
                  .landing = take_place(random, next, life.area_bytes, false),
                  .target = take_place(random, next, life.area_bytes, true),
                  .tickets = take_place(random, next, kTickets * sizeof(uint64_t), true),
                  .receives = take_place(random, next,
                                         uint64_t{life.receive_depth} * life.slot_bytes, false)};
  }
  for (size_t i = 0; i < life.members.size(); ++i) {
    MemberPlan& member = life.members[i];
    member.shared_receives =
        take_place(random, at[i], uint64_t{kSharedDepth} * life.slot_bytes, false);
    member.arena_bytes = (at[i] + 2 * kBegin) / kBegin * kBegin;
  }
}

EndPlan make_end(Random& random, const Life& life, ibv_qp_type type, uint32_t member) {
  const uint64_t cqs = life.members[member].extended_cqs.size();
  return {.type = type,
          .member = member,
          .extended = random.below(2) == 0,
          .shared_receives = type != IBV_QPT_UC && random.below(4) == 0,
          .signal_all = random.below(8) == 0,
          .send_cq = static_cast<uint32_t>(random.below(cqs)),
          .recv_cq = static_cast<uint32_t>(random.below(cqs)),
          .send_depth = 16 + static_cast<uint32_t>(random.below(48)),
          .max_inline_bytes = static_cast<uint32_t>(random.below(512))};
}

void add_pair(Random& random, Life& life, ibv_qp_type type) {
  const auto members = static_cast<uint32_t>(life.members.size());
  const auto a = static_cast<uint32_t>(random.below(members));
  // Some are connected within their process.
  const uint32_t b = random.below(8) == 0
                         ? a
                         : (a + 1 + static_cast<uint32_t>(random.below(members - 1))) % members;
  const auto index = static_cast<uint32_t>(life.ends.size());
  life.ends.push_back(make_end(random, life, type, a));
  life.ends.push_back(make_end(random, life, type, b));
  life.ends[index].peer = index + 1;
  life.ends[index + 1].peer = index;
}

}  // namespace

Life make_life(uint64_t seed, const Setting& setting) {
  Random random(seed);
  // Messages above 1 MiB are copied in parts.
  const bool is_large = random.below(10) == 0;
  Life life{.seed = seed, .rounds = setting.rounds};
  life.members.resize(is_large ? 2 : 2 + random.below(setting.max_members - 1));
  life.area_bytes = is_large ? 1'500'000 : 1000 + static_cast<uint32_t>(random.below(12'000));
  life.message_bytes = life.area_bytes - static_cast<uint32_t>(random.below(500));
  life.receive_depth = is_large ? 2 : 4 + static_cast<uint32_t>(random.below(13));
  for (MemberPlan& member : life.members) {
    member.extended_cqs.resize(1 + random.below(3));
    for (auto&& extended : member.extended_cqs) extended = random.below(2) == 0;
    member.sleeps = random.below(3) == 0;
  }
  const uint64_t reliable = is_large ? 1 : 2 + random.below(5);
  const uint64_t unreliable = random.below(is_large ? 2 : 3);
  const uint64_t datagrams = is_large ? 0 : random.below(5);
  for (uint64_t i = 0; i < reliable; ++i) add_pair(random, life, IBV_QPT_RC);
  for (uint64_t i = 0; i < unreliable; ++i) add_pair(random, life, IBV_QPT_UC);
  for (uint64_t i = 0; i < datagrams; ++i) {
    const auto member = static_cast<uint32_t>(random.below(life.members.size()));
    life.ends.push_back(make_end(random, life, IBV_QPT_UD, member));
    if (life.ends.back().shared_receives) life.members[member].datagrams_share = true;
  }
  if (is_large) {
    for (EndPlan& end : life.ends) end.shared_receives = false;
  }
  lay_out(random, life);
  if (setting.with_victim) life.victim = static_cast<uint32_t>(random.below(life.members.size()));
  return life;
}

}  // namespace verbena::soft_model
