#include "src/bench/message/message_settings.h"

#include <algorithm>

#include "src/bench/message/replay_pending.h"
#include "src/bench/message/replay_source.h"
#include "src/memory/arena.h"

namespace verbena::bench {

namespace {

// The longest header of a message, and the flags and size around it (message_header.h,
// head_tail_mark.h): a slot has both beside what is copied. One-sided operations say where, too.
constexpr uint32_t kAroundMessageBytes = 48;
constexpr uint32_t kAroundOneSidedBytes = 112;
constexpr uint32_t kLeastSlotBytes = 256;
// Of a replay at least; and beside what the program has pending, sends that nobody waits for.
constexpr uint32_t kReplayOperations = 4096;
constexpr uint32_t kUnawaitedSends = 1024;

// A blocking receive behind the last operation that there is room for could wait for ever.
uint32_t replay_operations(const Point& point, uint32_t rank) {
  const auto job = replay_job(point);
  // Whoever makes the calls refuses both.
  if (!job.ok() || rank >= (*job)->size()) return kReplayOperations;
  const uint64_t pending = std::min(replay_pending(**job, rank), kMostReplayPending);
  return std::max(kReplayOperations, static_cast<uint32_t>(pending) + kUnawaitedSends);
}

}  // namespace

MessengerOptions messenger_options(const Point& point, uint32_t rank) {
  const MessageSettings& settings = message_settings(point);
  const uint32_t peers = message_ranks(point) - 1;
  MessengerOptions options;
  options.max_peers = peers + 1;
  options.max_operations = settings.test == MessageTest::kReplay ? replay_operations(point, rank)
                                                                 : 4 * settings.window + 256;
  options.max_completions = 4 * options.max_operations;
  options.max_unexpected = options.max_operations;
  options.unexpected_bytes = uint64_t{4} << 20;
  options.slot_bytes =
      std::max(round_up(settings.eager_bytes + kAroundMessageBytes +
                            (is_one_sided(settings.test) ? kAroundOneSidedBytes : 0),
                        64u),
               kLeastSlotBytes);
  options.ring_slots = settings.ring_slots;
  options.queue_credits = settings.credits;
  options.signal_interval = point.signal_interval;
  options.inline_bytes = point.inline_bytes;
  options.order = settings.order;
  options.reused_buffers = settings.reuse;
  options.reuse_index = settings.index;
  options.long_messages = settings.long_messages;
  // Where only rank 0 exchanges messages, nobody else sends to the others.
  const uint32_t senders = rank == 0 || is_collective(settings.test) ? peers : 1;
  switch (settings.channel) {
    case MessageChannel::kRing:
      options.polling_set = senders;
      options.policy = PollingSetPolicy::kAll;
      break;
    case MessageChannel::kSend:
      options.polling_set = 0;
      break;
    case MessageChannel::kBoth:
      options.polling_set = std::min(settings.polling_set, senders);
      options.policy = settings.policy;
      break;
  }
  return options;
}

}  // namespace verbena::bench
