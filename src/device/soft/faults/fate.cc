#include "src/device/soft/faults/fate.h"

#include <algorithm>
#include <cmath>

namespace verbena::soft::faults {
namespace {

// Which of a queue pair's faults; keeps their draws apart.
enum class Stream : uint64_t { kLoss = 1, kNak, kDelay, kError };

Random stream_of(const FaultSettings& settings, Stream stream, uint32_t ordinal) {
  const uint64_t number = static_cast<uint64_t>(stream) << 56 | ordinal;
  return Random(Random(Random(settings.seed).next() ^ number).next());
}

// In [0, 1).
double uniform(Random& random) {
  constexpr double kTwoTo53 = 9007199254740992.0;
  return static_cast<double>(random.next() >> 11) / kTwoTo53;
}

bool hit(Random& random, double probability) { return uniform(random) < probability; }

}  // namespace

FateDraws::FateDraws(const FaultSettings& settings, uint32_t ordinal)
    : settings_(settings),
      losses_(stream_of(settings, Stream::kLoss, ordinal)),
      naks_(stream_of(settings, Stream::kNak, ordinal)),
      delays_(stream_of(settings, Stream::kDelay, ordinal)),
      errors_(stream_of(settings, Stream::kError, ordinal)),
      until_loss_(next_gap()) {}

// One draw per lost packet, since a message may have very many packets: the gaps between losses
// have a geometric distribution.
uint64_t FateDraws::next_gap() {
  if (settings_.drop <= 0) return kNever;
  if (settings_.drop >= 1) return 1;
  constexpr double kLongest = 1e18;
  const double gap = std::floor(std::log1p(-uniform(losses_)) / std::log1p(-settings_.drop));
  return 1 + static_cast<uint64_t>(std::min(gap, kLongest));
}

// Of a reliable connection, the packets go on with the lost one when its time is over; the retries
// count from the last packet that got through.
void FateDraws::draw_losses(const Passage& passage, Fate& fate) {
  uint64_t left = passage.packets;
  for (uint32_t in_row = 0; until_loss_ <= left;) {
    if (until_loss_ > 1) in_row = 0;
    left -= until_loss_ - 1;
    ++in_row;
    ++fate.lost_packets;
    until_loss_ = next_gap();
    if (!passage.reliable) {
      fate.ending = Ending::kLost;
      // The rest of the message passes, too.
      for (--left; until_loss_ <= left; until_loss_ = next_gap()) left -= until_loss_;
      break;
    }
    if (passage.timeout_ns == 0) {
      fate.extra_ns = kNever;
      return;
    }
    fate.extra_ns = add_ns(fate.extra_ns, passage.timeout_ns);
    if (in_row > passage.retry_count) {
      fate.ending = Ending::kRetriesExceeded;
      return;
    }
  }
  if (until_loss_ != kNever) until_loss_ -= left;
}

void FateDraws::draw_naks(const Passage& passage, Fate& fate) {
  if (!passage.reliable || !passage.takes_receive || settings_.rnr <= 0) return;
  constexpr uint32_t kForEver = 7;
  constexpr uint32_t kMostNaks = 1u << 20;
  uint64_t waited_ns = 0;
  while (hit(naks_, settings_.rnr)) {
    ++fate.rnr_naks;
    if (passage.rnr_retry != kForEver && fate.rnr_naks > passage.rnr_retry) {
      fate.ending = Ending::kRnrRetriesExceeded;
      break;
    }
    if (fate.rnr_naks == kMostNaks) {
      waited_ns = kNever;
      break;
    }
    waited_ns = add_ns(waited_ns, passage.rnr_timer_ns);
  }
  fate.extra_ns = add_ns(fate.extra_ns, waited_ns);
}

Fate FateDraws::draw(const Passage& passage) {
  Fate fate;
  draw_losses(passage, fate);
  if (fate.ending == Ending::kDelivered) draw_naks(passage, fate);
  if (settings_.delay > 0) {
    // Both draws in any case, so that each operation has its own.
    const bool delayed = hit(delays_, settings_.delay);
    const uint64_t delay_ns = 1 + delays_.below(settings_.longest_delay_ns);
    if (delayed) {
      fate.delay_ns = delay_ns;
      fate.extra_ns = add_ns(fate.extra_ns, delay_ns);
    }
  }
  if (settings_.queue_pair_error > 0 && hit(errors_, settings_.queue_pair_error)) {
    fate.ending = Ending::kQueuePairError;
    fate.extra_ns = 0;
  }
  return fate;
}

}  // namespace verbena::soft::faults
