// The messenger behind verbena/message.h. Control path: messenger.cc. Data path:
// messenger_send_datapath.cc, messenger_receive_datapath.cc, for short messages without a copy
// gathered_send_datapath.cc, for long ones rendezvous_source_datapath.cc and
// rendezvous_target_datapath.cc, and for one-sided operations one_sided_initiator_datapath.cc and
// one_sided_target_datapath.cc. Sleeping: messenger_wait.cc.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/connect/peer_watch.h"
#include "src/device/step_costs.h"
#include "src/memory/arena.h"
#include "src/memory/buffer_use.h"
#include "src/message/buffer_reuse.h"
#include "src/message/connector.h"
#include "src/message/exposed_memory.h"
#include "src/message/matching.h"
#include "src/message/message_header.h"
#include "src/message/message_memory.h"
#include "src/message/number_pool.h"
#include "src/message/one_sided_wire.h"
#include "src/message/peer_connection.h"
#include "src/message/polling_set.h"
#include "src/message/queue_channel.h"
#include "src/message/rendezvous_choice.h"
#include "src/message/ring_channel.h"
#include "src/message/shared_numbers.h"
#include "src/message/sleep_place.h"
#include "src/message/unexpected_store.h"
#include "src/message/zeroed_array.h"
#include "verbena/message.h"

namespace verbena::message {

// Whether the options are in their ranges.
Status check(const MessengerOptions& options);

class MessengerState final : public Messenger {
 public:
  static Result<std::unique_ptr<MessengerState>> open(const Device& device,
                                                      const ProtectionDomain& domain,
                                                      const JobSecret& secret,
                                                      const MessengerOptions& options);
  ~MessengerState() override;
  bool wind_down() override;

  MessengerAddress address() const override { return connector_->address(); }
  const MessengerOptions& options() const override { return options_; }
  uint64_t eager_limit_bytes() const override { return room_bytes_ - kMaxHeaderBytes; }

  Result<PeerNumber> add_peer(const MessengerAddress& address) override;
  MessengerAddress address_of(PeerNumber peer) const override { return peers_[peer]->address; }
  const Status& peer_status(PeerNumber peer) const override { return peers_[peer]->status; }
  void hint(PeerNumber peer, uint32_t weight) override;

  PostResult send(const SendRequest& request) override;
  PostResult receive(const ReceiveRequest& request) override;
  bool peek(const ReceiveRequest& request, MessageInfo* info) override;
  bool claim(const ReceiveRequest& request, MessageInfo* info) override;
  PostResult receive_claimed(uint32_t claim, const ReceiveRequest& request) override;
  PostResult discard_claimed(uint32_t claim) override;
  bool cancel(const void* context) override;

  PostResult put(const OneSidedRequest& request) override;
  PostResult get(const OneSidedRequest& request) override;
  PostResult atomic(const AtomicRequest& request) override;
  uint64_t one_sided_limit_bytes() const override { return one_sided_room_bytes(room_bytes_); }
  uint64_t atomic_limit_bytes() const override { return atomic_room_bytes(room_bytes_); }
  PostResult flush(PeerNumber peer) override;
  bool awaits_peer(PeerNumber peer) const override;
  ExposedMemory& exposed() override { return *exposed_; }

  uint32_t progress() override;
  uint32_t poll(std::span<MessageCompletion> completions) override;
  std::span<const MessageCompletion> poll_in_place() override;
  void drop_completions(uint32_t count) override;
  bool rings_have_messages(uint32_t polls) const override;
  bool prepare_to_sleep() override;
  int event_descriptor() const override { return place_ == nullptr ? -1 : place_->descriptor(); }
  void wait(int64_t timeout_ns) override;

  const Status& error() const override { return error_; }
  const MessengerStatistics& statistics() const override { return statistics_; }
  PeerStatistics peer_statistics(PeerNumber peer) const override;
  MessageExplanation explain(PeerNumber peer, uint64_t bytes, const void* buffer) override;

 private:
  static constexpr uint32_t kNone = ~0u;
  // Credits of the SEND/RECV channel that only messages may take which their receiver frees at
  // once: so those get through whatever else is stuck.
  static constexpr uint32_t kReservedCredits = 2;
  // Receives for messages that take no credit: each returns half of a channel's at least, or two
  // reserved ones where nothing else comes.
  static constexpr uint32_t kSpareReceives = 6;
  // Beside one for each peer.
  static constexpr uint32_t kMaxTransfers = 1024;
  static constexpr uint64_t kMostOfOneRequest = 1u << 30;
  // READs in the send queue beside messages.
  static constexpr uint32_t kReadRoom = 32;
  static constexpr uint32_t kMaxMoves = 256;  // the same
  static constexpr uint32_t kMostOfOnePoll = 16;
  static constexpr uint32_t kPollsWithoutProgress = 16;
  static constexpr uint32_t kRoundsOfRings = 4;  // for one of the completion queue
  // Some round trips, also of slow devices; less than a peer is away that computes or sleeps.
  static constexpr uint64_t kRingPatienceNs = 20'000;
  // A peer that declined a ring is offered one again after so many messages, then twice as many.
  static constexpr uint64_t kOfferAgainMessages = 16;
  static constexpr uint32_t kMostDeclines = 10;
  // A ring to send from changes hands for so many times the messages.
  static constexpr uint64_t kRingHysteresis = 2;
  static constexpr uint64_t kConsideredMessages = 1024;  // then they are counted anew

  struct Peer {
    MessengerAddress address;
    Status status;
    PeerConnection* connection = nullptr;
    PeerStatistics counts;  // of a connection that was retired
    bool requested = false;
    uint32_t hint = 0;
    uint32_t one_sided = 0;  // operations that have not completed
  };

  // A send or a receive that has not completed.
  struct Operation {
    enum class State : uint8_t {
      kFree,
      kPosted,         // a receive that waits for a message
      kReceiving,      // one that has its message, or is used up, and transfers are not over
      kCancelled,      // one for several that was cancelled, and transfers are not over
      kAwaitsFinish,   // a send
      kGathered,       // a short one, which the peer's device may not have acknowledged yet
      kSending,        // a long one, of whose bytes the receiver has said where they go
      kAwaitsReceive,  // a send to the own address
      kAwaitsAnswer,   // a one-sided operation
    };
    State state;
    MessageEvent event;  // of a one-sided operation
    uint32_t flags;
    uint32_t generation;  // how often its number was used: a peer may name an old one
    PeerNumber peer;      // of a send; of a receive the source, or kAnyPeer
    uint64_t tag;
    uint64_t ignore;  // of a receive
    void* context;
    iovec pieces[kMaxPieces];
    uint32_t piece_count;
    uint32_t transfers;    // that are not over
    uint64_t least_bytes;  // kMessageMulti
    uint64_t used_bytes;   // of one-sided operations: those of the answer
  };

  // An unexpected message.
  struct Envelope {
    enum class Place : uint8_t { kFree, kStore, kRing, kReceive, kRemote, kSelf };
    Place place;
    bool claimed;
    bool discarded;      // by who has claimed it; its sender is still to be told
    bool confirms_self;  // its sender, which is this messenger, waits for its receiver
    uint8_t flags;       // HeaderFlags
    PeerNumber peer;
    uint32_t where;       // first block; ring slot; receive
    uint32_t connection;  // where it came from; kNone: the own address
    const char* payload;
    uint64_t tag;
    uint64_t data;
    uint64_t bytes;
    uint64_t operation;  // of the sender, with kWantsFinish or confirms_self
    RemoteMemory remote;
  };

  // A long message on its way in, and what is to be told to its sender.
  struct Transfer {
    enum class Stage : uint8_t {
      kFree,
      kReading,
      kAnswering,  // the sender is to be told where it goes
      kAwaiting,   // its bytes; in no list
      kFinishing,  // the sender is to be told that it is over
    };
    uint32_t next;  // of the connection, plus 1
    uint32_t operation;
    Stage stage;
    bool failed;
    Method method;
    uint32_t connection;
    uint32_t generation;  // how often its number was used: a peer may name an old one
    iovec local[kMaxPieces];
    uint32_t local_count;
    PieceMemory memory;
    RemoteMemory remote;
    uint64_t to_move;
    uint64_t posted;  // of READs; of chunks those that have come
    uint64_t end;     // in the send queue, once all is posted
    uint64_t sender_operation;
    MessageCompletion completion;
  };

  // A long message on its way out, beside its operation; of a gathered one or a put, `next` and
  // `end`, which is 0 where no work request of this side reads from its memory.
  struct Outgoing {
    bool offered;   // the receiver has not said yet how it wants it
    Method method;  // as it was offered; and then as it goes
    bool told;      // kWritten has been sent
    uint32_t next;  // of the connection, plus 1
    Target target;
    uint64_t posted;
    uint64_t end;  // in the send queue, once all is posted
  };

  // Bytes of a long put or get that the device moves for a peer, and the answer.
  struct Move {
    uint32_t next;  // of the connection, plus 1
    bool to_peer;   // WRITEs, else READs
    bool moving;    // else only the answer is due
    bool answered;  // it is on its way behind the WRITE
    bool has_data;
    MessageOutcome outcome;
    uint32_t range_count;
    uint32_t far_count;
    RemoteRange ranges[kMaxPieces];  // of exposed memory
    ExposedMemory::Table::Places near;
    internal::CachedRegion* memory[ExposedMemory::Table::Places::kMax];  // registered
    RemotePiece far[kMaxPieces];
    uint64_t bytes;
    uint64_t posted;
    uint64_t end;  // in the send queue, once all is posted
    uint64_t operation;
    uint64_t data;
  };

  // What a receive and a message make together.
  struct Delivery {
    iovec local[kMaxPieces];
    uint32_t local_count = 0;
    MessageCompletion completion;
  };

  // What became of a message.
  enum class Fate : uint8_t {
    kStalled,  // nothing: something is used up; it is tried again
    kUsed,
    kHeld,  // it stays in its slot or receive for now
    kWrong,
  };

  MessengerState(const Device& device, const ProtectionDomain& domain,
                 const MessengerOptions& options);
  Status prepare(const JobSecret& secret);
  Status estimate_costs();
  uint32_t adopt();
  void adopt(Joined joined);
  std::vector<SharedReceives::Arrival> early_of(const Joined& joined);
  void lose(PeerConnection& connection, Status why);
  // Destroys a connection that is broken and that nothing refers to any more, so that another one
  // can have its number and its receives. False: something does.
  bool retire(PeerConnection& connection);
  bool owes_confirmations() const;
  void give_up_receives();
  void lose_operations(PeerNumber peer);
  static bool is_still_received(PeerConnection& connection);
  void watch(uint32_t found);
  uint32_t receives_per_connection() const {
    return options_.queue_credits + options_.queue_credits / 4 + kSpareReceives;
  }
  PostResult refuse(std::string why);

  Matching& matching(bool untagged) { return untagged ? untagged_ : tagged_; }
  static MatchPattern pattern_of(const ReceiveRequest& request) {
    if ((request.flags & kMessageUntagged) != 0) return {request.source, 0, ~uint64_t{0}};
    return {request.source, request.tag, request.ignore};
  }

  // --- completions ---
  bool has_completion_room() const {
    return completion_count_ + operation_numbers_.in_use() + reserved_completions_ <
           completions_.size();
  }
  // The next completion, to be filled in as a whole.
  MessageCompletion& new_completion() {
    VERBENA_ASSERT(completion_count_ < completions_.size());
    uint32_t place = first_completion_ + completion_count_++;
    if (place >= completions_.size()) place -= static_cast<uint32_t>(completions_.size());
    return completions_[place];
  }
  void complete(const MessageCompletion& completion) { new_completion() = completion; }
  uint32_t new_operation(void* context, uint32_t flags, PeerNumber peer,
                         std::span<const iovec> pieces);
  void free_operation(uint32_t number) {
    VERBENA_ASSERT(operations_[number].state != Operation::State::kFree);
    operations_[number].state = Operation::State::kFree;
    operation_numbers_.give_back(number);
  }
  static MessageCompletion completion_of(const Operation& operation, MessageEvent event,
                                         MessageOutcome outcome);
  void complete_operation(uint32_t number, MessageEvent event, MessageOutcome outcome);

  // --- sending ---
  struct Room {
    char* to = nullptr;  // null: there is none
    bool ring = false;
  };
  bool awaits_ring_credits(PeerConnection& connection);
  Room room_for_message(PeerConnection& connection, uint32_t reserved, bool by_ring = true);
  // HeaderFlags of a send.
  static uint8_t header_flags_of(uint32_t flags) {
    return static_cast<uint8_t>(((flags & kMessageData) != 0 ? unsigned{kHasData} : 0u) |
                                ((flags & kMessageUntagged) != 0 ? unsigned{kUntagged} : 0u));
  }
  // Of the header cache: kSameTag, if the tag need not travel. Called for each eager message that
  // is sent.
  static uint8_t remember_tag(PeerConnection& connection, uint64_t tag) {
    if (connection.last_tag_out == tag) return kSameTag;
    connection.last_tag_out = tag;
    return 0;
  }
  // The same of the next one that arrives. May be called again for one that could not be handled.
  static void restore_tag(PeerConnection& connection, ParsedMessage& message) {
    if (message.header.kind != Kind::kEager) return;
    if ((message.header.flags & kSameTag) != 0) {
      message.header.tag = connection.last_tag_in;
    } else {
      connection.last_tag_in = message.header.tag;
    }
  }
  MessageHeader next_header(PeerConnection& connection, Kind kind, uint8_t flags, uint64_t tag);
  void post(PeerConnection& connection, const Room& room, const char* end, bool in_order = true,
            bool signaled = false);
  void clear_tail(PeerConnection& connection, RingSender& ring, uint32_t bytes);
  bool post_control(PeerConnection& connection, Kind kind, uint8_t flags, uint64_t tag,
                    uint64_t data = 0);
  void post_credits(PeerConnection& connection);
  // Whether credits wait that the peer may need before anything else goes its way.
  bool owes_credits(const PeerConnection& connection) const {
    if (connection.owed.credits() > 0 && owes_queue_credits(connection)) return true;
    return connection.ring_in != nullptr && !connection.ring_in_left &&
           2 * connection.ring_in->credits() >= options_.ring_slots;
  }
  bool owes_queue_credits(const PeerConnection& connection) const;
  // Whether the peer may have none left for what frees others.
  static bool owes_urgent(const PeerConnection& connection) {
    return connection.owed.urgent() >= kReservedCredits;
  }
  PostResult send_eager(PeerConnection& connection, const SendRequest& request, uint64_t bytes);
  PostResult send_rendezvous(PeerConnection& connection, const SendRequest& request,
                             uint64_t bytes);
  PostResult send_to_self(const SendRequest& request, uint64_t bytes);

  // --- short messages from the user's memory ---
  // Where it is, if it may and is to be sent from there; else null bytes.
  struct Source {
    GatheredBytes bytes;
    internal::CachedRegion* region = nullptr;
  };
  Source source_of(PeerConnection& connection, std::span<const iovec> pieces, uint64_t bytes,
                   uint32_t flags, ReusePath path);
  // The memory of a get, if its peer may place the bytes there; else null.
  internal::CachedRegion* target_of(std::span<const iovec> pieces, uint64_t bytes,
                                    RemotePiece* target);
  PostResult send_reused(PeerConnection& connection, const SendRequest& request, uint64_t bytes);
  void post_gathered(PeerConnection& connection, const Room& room, const char* end,
                     const GatheredBytes& rest);
  void append_acknowledged(PeerConnection& connection, uint32_t number);
  void serve_gathered(PeerConnection& connection);
  // The peer has the operation's bytes: holds their registration as long as the device may read
  // them once more.
  void hold_gathered(PeerConnection& connection, uint32_t number);
  // Lets go of what belongs to work requests up to `retired`.
  static void release_held(PeerConnection& connection, uint64_t retired) {
    connection.held.release(
        retired, [](internal::CachedRegion** region) { MessageMemory::give_back(region); });
  }

  PostResult would_block() {
    ++statistics_.would_block;
    return PostResult::kWouldBlock;
  }
  void make_busy(PeerConnection& connection) {
    if (connection.busy) return;
    connection.busy = true;
    busy_.push_back(&connection);
  }
  void serve_busy();
  bool serve(PeerConnection& connection);

  // --- receiving ---
  uint32_t poll_rings();
  uint32_t poll_queue();
  void arrived(const SharedReceives::Arrival& arrival);
  [[gnu::noinline]] void arrived_astray(const SharedReceives::Arrival& arrival);
  uint32_t take_from(PeerConnection& connection);
  Fate take_queued(PeerConnection& connection);
  Fate take_from_ring(PeerConnection& connection);
  [[gnu::noinline]] Fate look_ahead(PeerConnection& connection, RingReceiver& ring);
  Fate take_usual(PeerConnection& connection, RingReceiver& ring,
                  const RingReceiver::Arrival& arrival, const ParsedMessage& message);
  [[gnu::noinline]] Fate handle(PeerConnection& connection, const ParsedMessage& message,
                                Envelope::Place place, uint32_t where);
  static Fate wait_for_room(PeerConnection& connection);
  Fate handle_message(PeerConnection& connection, const ParsedMessage& message,
                      Envelope::Place place, uint32_t where);
  bool finish_operation(PeerConnection& connection, const ParsedMessage& message);
  Fate handle_ring_offer(PeerConnection& connection, const ParsedMessage& message);
  Fate handle_ring_left(PeerConnection& connection);
  bool ring_out_will_be_free_for(const PeerConnection& wanting);
  bool is_ring_out_awaited() const;
  void take_ring_out(PeerConnection& connection);
  void free_ring_out(PeerConnection& connection);
  bool take_credits(PeerConnection& connection, const MessageHeader& header);
  void release_slot(PeerConnection& connection, uint32_t slot);
  void return_ring_in(PeerConnection& connection);
  void count_arrival(PeerConnection& connection);
  void manage_polling_set();
  bool everything_wakes() const;

  void receive_whole(Matching& posted, uint32_t number, PeerNumber peer,
                     const ParsedMessage& message);
  Delivery begin_delivery(uint32_t operation, PeerNumber peer, uint64_t tag, uint64_t data,
                          uint8_t header_flags, uint64_t bytes);
  void end_delivery(uint32_t operation, const MessageCompletion& completion);
  void add_unexpected(const Envelope& envelope);
  static bool is_used_up(const Operation& receive) {
    return (receive.flags & kMessageMulti) == 0 ||
           receive.least_bytes > receive.pieces[0].iov_len - receive.used_bytes;
  }
  uint32_t next_for(const Operation& receive) {
    return matching((receive.flags & kMessageUntagged) != 0)
        .find_message({receive.peer, receive.tag, receive.ignore});
  }
  void go_on_receiving(uint32_t number, uint32_t found);
  void go_on_discarding();
  PostResult deliver_unexpected(uint32_t envelope, uint32_t operation);
  void drop_envelope(uint32_t number);
  bool may_transfer(const PeerConnection& connection) const {
    return transfer_numbers_.grants(connection.transfers);
  }
  // Whether there is a transfer for the message, if its sender is to be told of it.
  bool may_deliver(const Envelope& envelope) const {
    if ((envelope.flags & kWantsFinish) == 0 || envelope.connection == kNone) return true;
    const PeerConnection& connection = *connections_[envelope.connection];
    return connection.broken || may_transfer(connection);
  }
  uint32_t find_unexpected(const ReceiveRequest& request, MessageInfo* info);
  bool check(const ReceiveRequest& request);
  bool check_claim(uint32_t claim);
  void discard(uint32_t claim);

  // --- long messages ---
  static bool is_valid(const RemoteMemory& remote, Method with_pieces);
  static void describe(std::span<const iovec> pieces, const PieceMemory& memory,
                       RemoteMemory* description);
  bool register_pieces(std::span<const iovec> pieces, unsigned access, PieceMemory* memory);
  // What of a message goes by one work request.
  struct Stretch {
    uint32_t near;
    uint32_t far;
    uint64_t near_at;
    uint64_t far_at;
    uint64_t bytes;
  };
  static Stretch stretch_at(const iovec* near, const RemotePiece* far, uint64_t at, uint64_t end);

  // --- long messages, where they are sent ---
  MessageState state_of_source(std::span<const iovec> pieces, uint64_t bytes, PieceMemory* found);
  // False: the memory is not there.
  bool choose_source(PeerConnection& connection, std::span<const iovec> pieces, uint64_t bytes,
                     Method* method, PieceMemory* source);
  double registration_ns(unsigned access, uint64_t bytes) const;
  bool leaves_in_place() const { return steps_.in_place_registration_ns > 0; }
  std::optional<InPlaceCosts> in_place_costs() const;
  std::string explain_in_place(Method method, uint64_t bytes) const;
  void count_registrations();
  // Whether the registration of a message's memory, in whole pages, outlasts the message.
  bool stays_registered(uint64_t bytes) const {
    constexpr uint64_t kMostPageEnds = 2 * kMaxPieces * uint64_t{4096};
    return bytes + kMostPageEnds <= options_.registered_bytes;
  }
  static void tell_method(PeerConnection& connection, Method method, const std::string& why);
  uint32_t awaiting_operation(const PeerConnection& connection, uint64_t named) const;
  bool take_target(PeerConnection& connection, const ParsedMessage& message);
  void append_outgoing(PeerConnection& connection, uint32_t number);
  // True: it is in the connection's list no more.
  bool serve_outgoing(PeerConnection& connection, uint32_t number);
  bool post_writes(PeerConnection& connection, uint32_t number);
  bool post_chunks(PeerConnection& connection, uint32_t number);
  void serve_all_outgoing(PeerConnection& connection);

  // --- and where they are received ---
  bool choose_target(uint32_t operation, const Delivery& delivery, const RemoteMemory& remote,
                     Method* method, PieceMemory* memory);
  uint32_t new_transfer(PeerConnection& connection);
  bool post_target(PeerConnection& connection, uint32_t number);
  Transfer* awaited(const PeerConnection& connection, uint64_t named, Method method);
  bool take_chunk(PeerConnection& connection, const ParsedMessage& message);
  bool take_written(PeerConnection& connection, const ParsedMessage& message);
  bool take_out_of_order(PeerConnection& connection, const ParsedMessage& message);
  void end_transfer(uint32_t number);
  void lose_transfers(PeerConnection& connection);
  void start_transfer(PeerConnection& connection, uint32_t operation, const Delivery& delivery,
                      const RemoteMemory& remote, uint64_t sender_operation);
  void start_finish(PeerConnection& connection, uint64_t sender_operation, bool failed);
  void append_transfer(PeerConnection& connection, uint32_t number);
  bool post_reads(PeerConnection& connection, Transfer& transfer);
  // True: it is in the connection's list no more.
  bool serve_transfer(PeerConnection& connection, uint32_t number);

  // --- one-sided operations, where they are posted ---
  // What has to be checked first, and the peer; null: `result` says why not.
  Peer* prepare_one_sided(PeerNumber number, uint32_t flags, size_t most_parts, uint64_t bytes,
                          std::span<const RemoteRange> remote, PostResult* result);
  PostResult post_move(Peer& peer, const OneSidedRequest& request, OneSidedAction action,
                       uint64_t bytes);
  Room room_for_one_sided(PeerConnection& connection);
  char* begin_one_sided(PeerConnection& connection, const Room& room, uint32_t number,
                        uint64_t data, const OneSidedHeader& header,
                        std::span<const RemoteRange> remote, std::span<const RemotePiece> pieces);
  uint32_t new_one_sided(PeerNumber peer, MessageEvent event, void* context, uint32_t flags,
                         std::span<const iovec> pieces, uint64_t answer_bytes);
  void end_one_sided(uint32_t number, MessageOutcome outcome);
  bool take_answer(PeerConnection& connection, const ParsedMessage& message);
  PostResult copy_to_self(const OneSidedRequest& request, MessageEvent event, uint64_t bytes);
  PostResult atomic_to_self(const AtomicRequest& request, uint64_t bytes);
  void complete_at_once(MessageEvent event, MessageOutcome outcome, void* context, uint32_t flags,
                        uint64_t bytes);
  // --- and where they are carried out ---
  Fate handle_one_sided(PeerConnection& connection, const ParsedMessage& message,
                        Envelope::Place place, uint32_t where);
  Fate carry_out(PeerConnection& connection, const ParsedMessage& message);
  void serve_parked(PeerConnection& connection);
  void release_parked(PeerConnection& connection);
  // `writes`: for the statistics, where atomics that fetch are reads. `modifies`: for the memory.
  void count_carried_out(MessageOutcome outcome, bool writes, bool modifies,
                         std::span<const RemoteRange> ranges);
  MessageOutcome resolve_atomic(std::span<const RemoteRange> ranges, AtomicType type,
                                AtomicOperation operation, bool fetches,
                                ExposedMemory::Table::Places* places);
  static char* carry_out_atomic(const OneSidedMessage& request,
                                const ExposedMemory::Table::Places& places, char* before,
                                char* end);
  Fate start_move(PeerConnection& connection, const ParsedMessage& message,
                  const OneSidedMessage& request);
  bool store_at_once(PeerConnection& connection, const ParsedMessage& message,
                     const OneSidedMessage& request, const ExposedMemory::Table::Places& places);
  void append_move(PeerConnection& connection, uint32_t number);
  bool register_places(Move& move);
  static void forget_places(Move& move);
  bool post_moves(PeerConnection& connection, Move& move);
  // True: moves are left.
  bool serve_moves(PeerConnection& connection);
  bool serve_move(PeerConnection& connection, uint32_t number);
  Move& new_move(PeerConnection& connection, uint32_t* number);
  void end_move(PeerConnection& connection, uint32_t number);
  void end_moves(PeerConnection& connection);
  bool post_answer(PeerConnection& connection, uint64_t operation, MessageOutcome outcome);
  void complete_written(PeerNumber peer, uint64_t data, uint64_t bytes);

  const Device* device_;
  const ProtectionDomain* domain_;
  const MessengerOptions options_;
  uint32_t room_bytes_ = 0;  // of a message with its header
  uint32_t inline_limit_bytes_ = 0;
  channel::SendQueueSizes send_sizes_;

  Matching tagged_;
  Matching untagged_;
  NumberPool operation_numbers_;
  ZeroedArray<Operation> operations_;
  NumberPool envelope_numbers_;
  ZeroedArray<Envelope> envelopes_;
  UnexpectedStore store_;
  SharedNumbers transfer_numbers_;
  ZeroedArray<Transfer> transfers_;
  // Of operations, by their numbers.
  ZeroedArray<PieceMemory> send_memory_;
  ZeroedArray<Outgoing> outgoing_;
  RendezvousCosts rendezvous_costs_;
  StepCosts steps_;
  std::optional<BufferUseTable> sent_buffers_;
  std::optional<BufferUseTable> received_buffers_;
  BufferReuse reused_sources_;
  BufferReuse reused_targets_;  // of gets
  // From this size on, eager messages are looked at for that; beyond the eager limit: none.
  uint64_t reused_from_bytes_ = 0;
  std::shared_ptr<ExposedMemory> exposed_;
  uint32_t one_sided_ = 0;  // operations that have not completed, of all peers
  SharedNumbers move_numbers_;
  ZeroedArray<Move> moves_;
  ZeroedArray<MessageCompletion> completions_;
  uint32_t first_completion_ = 0;
  uint32_t completion_count_ = 0;
  uint32_t reserved_completions_ = 0;  // for messages of receives for several
  // A receive for several that messages wait for, and something was used up.
  uint32_t half_posted_ = kNone;
  // Claimed messages that were discarded while there was no transfer for them.
  std::vector<uint32_t> discarded_;
  size_t next_discarded_ = 0;

  std::vector<std::unique_ptr<Peer>> peers_;  // where peer_status() refers to
  std::map<MessengerAddress, PeerNumber> numbers_;
  PeerNumber self_ = 0;
  bool winds_down_ = false;  // and has given up its receives

  PollingSet polling_;
  bool reconsider_polling_ = false;
  uint32_t rounds_without_queue_ = 0;
  uint32_t polls_without_progress_ = 0;
  std::vector<PeerConnection*> busy_;
  uint64_t ring_patience_end_ns_ = 0;  // of the last message that had to wait: see kRingPatienceNs
  connect::PeerWatch watch_;
  uint32_t next_watched_ = 0;
  uint64_t queue_was_empty_ = 0;  // polls of the completion queue
  // SENDs of peers whose connection is about to be handed over: of each as many as it has credits.
  std::vector<SharedReceives::Arrival> early_;
  Status error_;
  MessengerStatistics statistics_;

  std::unique_ptr<SleepPlace> place_;  // with events; outlives what reports to it
  std::optional<RegisteredArena> first_receives_;
  std::vector<RegisteredArena> left_receives_;  // with those of connections that were retired
  std::optional<RegisteredArena> ring_in_memory_;
  std::optional<RegisteredArena> ring_out_memory_;
  std::vector<RingReceiver> rings_in_;
  std::vector<RingSender> rings_out_;
  std::vector<RingReceiver*> free_rings_in_;
  std::vector<RingSender*> free_rings_out_;
  std::optional<CompletionQueue> arrivals_queue_;
  std::optional<SharedReceiveQueue> receive_queue_;
  SharedReceives receives_;
  std::optional<MessageMemory> memory_;
  std::vector<std::unique_ptr<PeerConnection>> connections_;  // before what they use
  uint32_t connections_end_ = 0;                              // there are none from here on
  std::unique_ptr<Connector> connector_;                      // goes first
};

inline uint32_t MessengerState::new_operation(void* context, uint32_t flags, PeerNumber peer,
                                              std::span<const iovec> pieces) {
  const uint32_t number = operation_numbers_.take();
  VERBENA_ASSERT(number != NumberPool::kNone);
  Operation& operation = operations_[number];
  VERBENA_ASSERT(operation.state == Operation::State::kFree);
  ++operation.generation;
  operation.flags = flags;
  operation.peer = peer;
  operation.context = context;
  operation.piece_count = static_cast<uint32_t>(pieces.size());
  for (uint32_t i = 0; i < pieces.size(); ++i) operation.pieces[i] = pieces[i];
  operation.transfers = 0;
  operation.used_bytes = 0;
  return number;
}

}  // namespace verbena::message
