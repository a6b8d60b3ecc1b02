#include "src/message/polling_set.h"

#include <algorithm>
#include <utility>

namespace verbena::message {

PollingSet::PollingSet(PollingSetPolicy policy, PollingOrder order, uint32_t places,
                       uint32_t max_connections)
    : policy_(policy), order_(order), places_(places), members_(max_connections) {
  polled_.reserve(places);
}

void PollingSet::add(uint32_t connection) {
  VERBENA_ASSERT(connection < members_.size() && !members_[connection].known);
  const uint32_t hint = members_[connection].hint;  // it may have come before
  members_[connection] = {};
  members_[connection].known = true;
  members_[connection].hint = hint;
  known_ = std::max(known_, connection + 1);
}

void PollingSet::remove(uint32_t connection) {
  VERBENA_ASSERT(members_[connection].known);
  if (is_in(connection)) left(connection);
  members_[connection].known = false;
}

void PollingSet::left(uint32_t connection) {
  VERBENA_ASSERT(is_in(connection));
  members_[connection].state = State::kOut;
  polled_.erase(std::find(polled_.begin(), polled_.end(), connection));
  if (start_ >= polled_.size()) start_ = 0;
}

void PollingSet::decline(uint32_t connection) {
  VERBENA_ASSERT(is_staying(connection));
  members_[connection].state = State::kLeaving;
  members_[connection].declined = true;
}

uint64_t PollingSet::merit(const Member& member) const {
  switch (policy_) {
    case PollingSetPolicy::kAll:
      return 1;
    case PollingSetPolicy::kFirst:
      return member.recent;
    case PollingSetPolicy::kDynamic:
      return uint64_t{member.traffic} + uint64_t{member.recent} * kScale;
    case PollingSetPolicy::kHints:
      return member.hint;
  }
  return 0;
}

// The one with the most merit among those without a place; none without any merit.
uint32_t PollingSet::best_out() const {
  uint32_t best = kNone;
  for (uint32_t connection = 0; connection < known_; ++connection) {
    const Member& member = members_[connection];
    if (!member.known || member.state != State::kOut || member.declined) continue;
    if (merit(member) == 0) continue;
    if (best == kNone || merit(member) > merit(members_[best])) best = connection;
  }
  return best;
}

uint32_t PollingSet::worst_in() const {
  uint32_t worst = kNone;
  for (const uint32_t connection : polled_) {
    if (members_[connection].state != State::kIn) continue;
    if (worst == kNone || merit(members_[connection]) < merit(members_[worst])) worst = connection;
  }
  return worst;
}

uint32_t PollingSet::next_to_join() {
  if (resting_) return kNone;
  if (polled_.size() >= places_) return kNone;
  const uint32_t connection = best_out();
  if (connection == kNone) return kNone;
  members_[connection].state = State::kIn;
  polled_.push_back(connection);
  if (order_ == PollingOrder::kByTraffic) sort();
  return connection;
}

uint32_t PollingSet::next_to_leave() {
  if (resting_) {
    const auto staying = std::find_if(polled_.begin(), polled_.end(),
                                      [this](uint32_t number) { return is_staying(number); });
    if (staying == polled_.end()) return kNone;
    members_[*staying].state = State::kLeaving;
    return *staying;
  }
  if (policy_ != PollingSetPolicy::kDynamic && policy_ != PollingSetPolicy::kHints) return kNone;
  if (polled_.size() < places_) return kNone;
  const auto is_leaving = [this](uint32_t connection) {
    return members_[connection].state == State::kLeaving;
  };
  // A place that will be free soon is enough for now.
  if (std::any_of(polled_.begin(), polled_.end(), is_leaving)) return kNone;
  const uint32_t candidate = best_out();
  const uint32_t worst = worst_in();
  if (candidate == kNone || worst == kNone) return kNone;
  const uint32_t factor = policy_ == PollingSetPolicy::kDynamic ? kHysteresis : 1;
  if (merit(members_[candidate]) <= factor * merit(members_[worst])) return kNone;
  members_[worst].state = State::kLeaving;
  return worst;
}

void PollingSet::end_period() {
  for (uint32_t connection = 0; connection < known_; ++connection) {
    Member& member = members_[connection];
    if (policy_ == PollingSetPolicy::kFirst) continue;  // who has ever sent stays known
    member.traffic = (member.traffic + member.recent * kScale) / 2;
    member.recent = 0;
  }
  arrivals_ = 0;
  resting_ = std::exchange(rested_, false);
  if (order_ == PollingOrder::kByTraffic) sort();
}

void PollingSet::sort() {
  std::sort(polled_.begin(), polled_.end(), [this](uint32_t a, uint32_t b) {
    const uint32_t more = members_[a].traffic;
    const uint32_t less = members_[b].traffic;
    return more != less ? more > less : a < b;
  });
}

}  // namespace verbena::message
