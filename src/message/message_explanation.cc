// What a messenger tells about how messages travel: the counts of a peer, and why the next message
// takes its way. Control path.
#include <fmt/format.h>

#include "src/base/assert.h"
#include "src/message/messenger_state.h"

namespace verbena::message {
namespace {

std::string explain_channel(const PeerConnection* connection, const MessengerOptions& options,
                            bool* by_ring) {
  if (connection == nullptr || connection->broken) return "there is no connection yet";
  const uint32_t credits = connection->queue.credits();
  if (!connection->ring_out_usable) {
    return fmt::format(
        "by SEND, with {} of {} credits, since the peer polls no ring of this messenger", credits,
        options.queue_credits);
  }
  const uint32_t slots = connection->ring_out->credits();
  if (slots == 0) {
    return fmt::format("by SEND, with {} of {} credits, since all {} slots of the ring are in use",
                       credits, options.queue_credits, options.ring_slots);
  }
  *by_ring = true;
  return fmt::format("by WRITE into a ring that the peer polls, {} of whose {} slots are free",
                     slots, options.ring_slots);
}

}  // namespace

PeerStatistics MessengerState::peer_statistics(PeerNumber peer) const {
  VERBENA_ASSERT(peer < peers_.size());
  const PeerConnection* const connection = peers_[peer]->connection;
  return connection != nullptr ? connection->counts : peers_[peer]->counts;
}

MessageExplanation MessengerState::explain(PeerNumber peer, uint64_t bytes, const void* buffer) {
  VERBENA_ASSERT(peer < peers_.size());
  MessageExplanation explanation;
  if (peer == self_) {
    explanation.protocol = MessageProtocol::kToSelf;
    explanation.text =
        "to itself: from its memory into that of a receive, or copied until there is one";
    return explanation;
  }
  const std::string channel =
      explain_channel(peers_[peer]->connection, options_, &explanation.by_ring);
  if (bytes <= eager_limit_bytes()) {
    const ReusePath path = explanation.by_ring ? ReusePath::kEagerWrite : ReusePath::kEagerSend;
    const std::string why = reused_sources_.explain(buffer, bytes, path, &explanation.gathered);
    explanation.text =
        fmt::format("eager, {}: {} bytes are {}, which has room for {}; {}", channel, bytes,
                    explanation.gathered ? "gathered by the device from their buffer into a slot"
                                         : "copied to a slot",
                    eager_limit_bytes(), why);
    return explanation;
  }
  MessageState state;
  state.readable = state.source = true;
  if (buffer != nullptr) {
    const iovec piece{const_cast<void*>(buffer), bytes};
    PieceMemory found;
    state = state_of_source({&piece, 1}, bytes, &found);
    MessageMemory::give_back(&found);
  }
  const LongMessages asked = options_.long_messages;
  const MethodChoice choice = choose_method(rendezvous_costs_, asked, bytes, state);
  explanation.protocol = protocol_of(choice.method);
  explanation.text =
      fmt::format("{}, asked for {}: {} bytes are more than the {} of an eager message; {}",
                  method_name(choice.method), channel, bytes, eager_limit_bytes(),
                  explain_choice(choice, asked, state) + explain_in_place(choice.method, bytes));
  return explanation;
}

std::string MessengerState::explain_in_place(Method method, uint64_t bytes) const {
  if (method != Method::kRead || !leaves_in_place()) return "";
  return fmt::format(
      "; of one buffer, some {:.0f} messages of this size are READ where it lies, through the "
      "kernel, "
      "and later ones from shared pages",
      messages_in_place(steps_, bytes));
}

}  // namespace verbena::message
