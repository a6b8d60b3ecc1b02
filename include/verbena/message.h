// Tagged messages between any number of peers: ordered, reliable, over RC queue pairs ("mpiiba").
//
//   auto secret = JobSecret::from_file("job.secret");
//   auto messenger = open_messenger(device, domain, *secret, {.host = "192.0.2.7"});
//   // Addresses are 32 bytes of plain data, which the processes exchange by any means.
//   auto peer = (*messenger)->add_peer(address_of_the_other);
//
//   char text[64];
//   const iovec into{text, sizeof(text)};
//   (*messenger)->receive({.source = *peer, .tag = 7, .pieces = {&into, 1}, .context = &text});
//   const iovec from{hello, sizeof(hello)};
//   while ((*messenger)->send({.peer = *peer, .tag = 7, .pieces = {&from, 1}}) ==
//          PostResult::kWouldBlock) {
//     (*messenger)->progress();
//   }
//   MessageCompletion done[8];
//   for (uint32_t i = 0, n = (*messenger)->poll(done); i < n; ++i) ...
//
// Order. Messages from one peer match receives in the order in which they were sent, among those
// that fit the first posted first, as in MPI. A peer's messages complete in any order.
//
// Nothing happens by itself: progress is made inside of progress() and poll(), which everybody who
// expects something calls; who expects something rarely sleeps in wait() meanwhile. Connections are
// made when the first message is sent, by two threads that do nothing else. After that, nothing on
// the way of a message of up to eager_limit_bytes() allocates, locks or enters the kernel, unless
// buffers that are used often are registered, and looked up, for it (reused_buffers). The memory of
// a longer one is registered on both sides, which does all three, and stays so for the next
// message: see registered_bytes.
//
// Threading: a messenger is used by one thread at a time.
#pragma once

#include <sys/uio.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/message_one_sided.h"
#include "verbena/message_polling.h"
#include "verbena/message_protocol.h"
#include "verbena/posting.h"
#include "verbena/status.h"

namespace verbena {

// Where a messenger is reached. Plain data; a process that is started again has another one.
struct MessengerAddress {
  uint8_t bytes[32] = {};
  friend auto operator<=>(const MessengerAddress&, const MessengerAddress&) = default;
};

// A place: the address of whichever messenger listens at a port of a host, before it is known. For
// ask_address() alone. `host` is a numeric address; "::" with port 0 is all zeros.
//   kInvalidArgument  no numeric address
Result<MessengerAddress> place_at(const std::string& host, uint16_t port);
bool is_place(const MessengerAddress& address);
// What is told by the bytes of an address or a place.
std::string host_of(const MessengerAddress& address);
uint16_t port_of(const MessengerAddress& address);
// The address of the messenger that listens at `place`. Blocks; while nobody listens there, up to
// `timeout_ns`.
//   kTimeout            nobody listened, or the messenger did not answer, in time
//   kPermissionDenied   one side holds another secret
//   kProtocolViolation  what listens there is no messenger, or of another release
Result<MessengerAddress> ask_address(const MessengerAddress& place, const JobSecret& secret,
                                     int64_t timeout_ns);

// A peer, as this messenger calls it (PeerNumber).
inline constexpr PeerNumber kAnyPeer = ~0u;

struct MessengerOptions {
  // Where peers reach this process's control connections: a numeric address of this host, and a
  // port (0: any).
  std::string host = "127.0.0.1";
  uint16_t port = 0;

  // Peers that this messenger is connected to at once, 1 to kMostPeers. Those that have ended make
  // room for others, once progress() has noticed it and what they sent has been received.
  uint32_t max_peers = 1024;
  static constexpr uint32_t kMostPeers = 16384;
  // Sends and receives that have not completed, 1 to 1 Mi.
  uint32_t max_operations = 16384;
  // Completions that were not polled; an operation is refused (kWouldBlock) rather than its
  // completion lost. More than max_operations.
  uint32_t max_completions = 32768;
  // Messages that nobody has posted a receive for, and the memory for their bytes. Beyond, senders
  // wait.
  uint32_t max_unexpected = 16384;
  uint64_t unexpected_bytes = 16ull << 20;

  // Both sides of a connection need the same three.
  // The largest message of one WRITE or SEND, with its header: 256 to 65,536, a multiple of 64.
  // An odd number of cache lines spreads the slots over the sets of a cache.
  uint32_t slot_bytes = 2112;
  // Messages on their way in a ring, 2 to 4096, and by SEND, 6 to 128.
  uint32_t ring_slots = 32;
  uint32_t queue_credits = 16;
  // Every how many of a connection's work requests one is signaled; 0: a quarter of its send queue
  // ("mpiiba" 4.3). With 1 each has a completion, as in the SEND/RECV design of "mpiiba" 3.1.
  uint32_t signal_interval = 0;

  // The most rings that are polled, 0 to 1024: each takes slot_bytes * ring_slots, twice.
  uint32_t polling_set = 8;
  PollingSetPolicy policy = PollingSetPolicy::kFirst;
  PollingOrder order = PollingOrder::kSequential;

  // How messages beyond eager_limit_bytes() travel. The sender chooses; the receiver takes chunks
  // instead where it cannot register its memory, or, if this is kAutomatic there, where that takes
  // longer. Memory that cannot be registered goes in chunks in any case.
  // By kRead the receiver's progress brings the bytes; by the others both sides have to make
  // progress, the sender until its send completes.
  LongMessages long_messages = LongMessages::kRead;
  // Users' memory that stays registered after its use, since registering costs more than sending
  // it; 0 bytes: none. It is never used for a message once the program has unmapped, remapped or
  // discarded it. Peers that were told of it can READ a source, or WRITE a target, for so long.
  uint64_t registered_bytes = uint64_t{1} << 30;
  uint32_t registered_regions = 8192;  // 1 to 1 Mi

  // Whether messages up to eager_limit_bytes(), and short puts and gets, leave from and come into
  // users' buffers without a copy, once a buffer is used often enough. Unless it is kCopied, what
  // is sent stays as it is until the send has completed, as that of longer messages; with
  // kMessageSilent or kMessageCopied it is copied, and may change at once. Needs devices that
  // gather three pieces; others copy.
  ReusedBuffers reused_buffers = ReusedBuffers::kCopied;
  // The part of the reuses that pay after which a buffer is registered, in the hope of the others:
  // above 0 and up to 1 (the paper has 0.25).
  double reuse_speculation = 0.25;
  // Stops to look for buffers that are used again while hardly any is ("bufreuse" 3.4).
  bool reuse_adapts = true;
  ReusedIndex reuse_index = ReusedIndex::kHash;
  uint32_t reuse_buffers = 1u << 18;  // that are counted, 1 to 16 Mi

  uint32_t inline_bytes = kDeviceInlineLimit;
  int64_t connect_timeout_ns = 10'000'000'000;

  // Whether it can sleep: prepare_to_sleep(), wait(). Takes five descriptors.
  bool events = false;
  // How long it sleeps at most before it looks after its peers: 1 us to a day.
  int64_t max_sleep_ns = 10'000'000;

  // The memory that peers may reach; null: the messenger's own. Several messengers that one thread
  // at a time uses may have it in common.
  std::shared_ptr<ExposedMemory> exposed = nullptr;
};

enum MessageFlags : uint32_t {
  kMessageUntagged = 1u << 0,   // a matching space of its own, without tags
  kMessageData = 1u << 1,       // carries SendRequest::data to the receiver's completion
  kMessageSilent = 1u << 2,     // no completion, unless it fails
  kMessageDelivered = 1u << 3,  // a send completes when its bytes are in the receiver's memory
  kMessageMulti = 1u << 4,      // a receive for several messages: see ReceiveRequest
  kMessageFence = 1u << 5,      // of one-sided operations: see there
  // Of a send up to eager_limit_bytes() or a put up to one_sided_limit_bytes(): its memory may
  // change at once, whatever MessengerOptions::reused_buffers says. Of longer ones it says nothing.
  kMessageCopied = 1u << 6,
  // A send completes no sooner than the peer's device has acknowledged its bytes, copied or not.
  // To oneself it says nothing.
  kMessageAcknowledged = 1u << 7,
  // Of any operation: comes back in its completions, and says nothing to the messenger.
  kMessageMarked = 1u << 8,
};

struct SendRequest {
  PeerNumber peer = 0;
  uint64_t tag = 0;
  // At most four. A message of up to eager_limit_bytes() is copied: its memory may change at once
  // (but see MessengerOptions::reused_buffers). That of a longer one, or of one to oneself with
  // kMessageDelivered, unless it is kMessageCopied and up to eager_limit_bytes(), stays as it is
  // until the send has completed.
  std::span<const iovec> pieces = {};
  void* context = nullptr;  // comes back in the completion
  uint64_t data = 0;        // with kMessageData
  uint32_t flags = 0;
};

struct ReceiveRequest {
  PeerNumber source = kAnyPeer;
  uint64_t tag = 0;
  uint64_t ignore = 0;  // bits of the tag that may differ
  // At most four, of kMessageMulti one. The memory is the messenger's until the receive has
  // completed.
  std::span<const iovec> pieces = {};
  void* context = nullptr;
  // kMessageMulti: messages are put one behind the other, each with a completion of its own, until
  // less than this is left; the last completion has kMessageMulti.
  uint64_t least_bytes = 0;
  uint32_t flags = 0;
};

enum class MessageEvent : uint8_t {
  kSent,
  kReceived,
  // One-sided operations that were posted here. Their bytes are at the peer, or here.
  kPut,
  kGot,
  kAtomic,
  kFetched,  // an atomic with results
  kWritten,  // a peer's put with data has written here
};

enum class MessageOutcome : uint8_t {
  kOk,
  kTruncated,  // the receive had less room; what fitted is there
  kCancelled,
  kPeerLost,  // peer_status() says why
  kFailed,    // the memory of a long message is not there: error()
  // Of one-sided operations, which then have changed nothing:
  kUnknownKey,
  kOutOfRange,
  kNotPermitted,
};

struct MessageCompletion {
  void* context = nullptr;
  MessageEvent event = MessageEvent::kSent;
  MessageOutcome outcome = MessageOutcome::kOk;
  uint32_t flags = 0;  // of the message: kMessageUntagged, kMessageData; of the receive: see there
  PeerNumber peer = 0;
  uint64_t tag = 0;
  uint64_t data = 0;
  uint64_t bytes = 0;       // of the message that are in the user's memory
  uint64_t lost_bytes = 0;  // kTruncated
  char* buffer = nullptr;   // kMessageMulti: where the message lies
};

// A message that has come and that nobody has received.
struct MessageInfo {
  PeerNumber peer = 0;
  uint64_t tag = 0;
  uint64_t data = 0;
  uint64_t bytes = 0;
  uint32_t flags = 0;
  uint32_t claim = 0;  // of claim(): for receive_claimed()
};

struct MessengerStatistics {
  uint64_t ring_messages = 0;   // sent by WRITE
  uint64_t queue_messages = 0;  // by SEND: no ring, or no credit for it
  uint64_t credit_messages = 0;
  uint64_t gathered = 0;       // sent from the user's memory, without a copy
  uint64_t stored = 0;         // short gets that the peer's device placed there
  uint64_t tails_cleared = 0;  // further WRITEs, where a ring's slot had a gathered message before
  uint64_t rendezvous = 0;     // long messages that were sent
  uint64_t unexpected = 0;     // messages that came before their receive
  uint64_t held = 0;           // of these, with no memory left: their slot stays in use
  uint64_t rings_given = 0;    // to peers, by the polling set, and taken back
  uint64_t rings_taken = 0;
  uint64_t would_block = 0;
  uint64_t registrations = 0;        // of users' memory
  uint64_t registered_in_place = 0;  // of these, without moving its pages to shared memory (soft0)
  uint64_t shared_later = 0;         // of those that peers READ, with shared pages after some uses
  uint64_t sleeps = 0;  // prepared with all peers' rings left, so that whatever comes wakes
  // Of peers, carried out here: puts and atomics, gets and fetching atomics.
  uint64_t remote_writes = 0;
  uint64_t remote_reads = 0;
  uint64_t remote_refused = 0;
  uint64_t pinned_bytes = 0;  // registered now: rings, and buffers of connections
};

class Messenger {
 public:
  // Ends all connections: peers see a peer that is lost. Operations do not complete any more. Makes
  // progress, and blocks up to six seconds, where peers still have to learn that it has received
  // their messages (kMessageDelivered).
  virtual ~Messenger() = default;
  // A step towards its end, for who has other messengers to poll meanwhile. Posted receives take no
  // more messages, and nothing may be posted any more. True: peers have learnt what the destructor
  // would wait for. False: call it again; the destructor waits for that no more. Makes progress();
  // never blocks.
  virtual bool wind_down() = 0;
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  virtual MessengerAddress address() const = 0;
  virtual const MessengerOptions& options() const = 0;
  // The longest message that is copied, and not transferred from the sender's memory.
  virtual uint64_t eager_limit_bytes() const = 0;

  // The peer's number; the same one if it is known. Its own address is a peer, too. A table entry;
  // no connection. kInvalidArgument: no address of a messenger.
  virtual Result<PeerNumber> add_peer(const MessengerAddress& address) = 0;
  // Of a number that add_peer() or a completion gave, as below.
  virtual MessengerAddress address_of(PeerNumber peer) const = 0;
  // Whether the peer can be sent to: ok also before there is a connection. Once it is lost, it
  // stays lost.
  virtual const Status& peer_status(PeerNumber peer) const = 0;
  // For PollingSetPolicy::kHints: how much will come from the peer; 0: little.
  virtual void hint(PeerNumber peer, uint32_t weight) = 0;

  // Never blocks. kWouldBlock: nothing has happened; progress(), then try again. It is also the
  // answer while the connection is made. kFailed: the peer is lost (peer_status()), or the request
  // is none (error()).
  virtual PostResult send(const SendRequest& request) = 0;
  virtual PostResult receive(const ReceiveRequest& request) = 0;

  // Whether a message that fits has come; it stays. Calls progress() first.
  virtual bool peek(const ReceiveRequest& request, MessageInfo* info) = 0;
  // The same, and nobody else gets it: receive_claimed() or discard_claimed() follows.
  virtual bool claim(const ReceiveRequest& request, MessageInfo* info) = 0;
  // kFailed, with the reason in error(): no message is claimed by this number.
  virtual PostResult receive_claimed(uint32_t claim, const ReceiveRequest& request) = 0;
  virtual PostResult discard_claimed(uint32_t claim) = 0;

  // A receive with this context, if it still waits for a message: its completion says kCancelled.
  // One for several takes no more, and completes behind the messages that it has. False: there is
  // none. Compares all of them.
  virtual bool cancel(const void* context) = 0;

  // One-sided operations. Never block; PostResult as that of send().
  virtual PostResult put(const OneSidedRequest& request) = 0;
  virtual PostResult get(const OneSidedRequest& request) = 0;
  virtual PostResult atomic(const AtomicRequest& request) = 0;
  // A put of no more is copied, unless MessengerOptions::reused_buffers says otherwise; a get of no
  // more needs no registered memory.
  virtual uint64_t one_sided_limit_bytes() const = 0;
  virtual uint64_t atomic_limit_bytes() const = 0;
  // kPosted: all one-sided operations at the peer (kAnyPeer: at all peers) have completed.
  // kWouldBlock: not yet; progress(), then again.
  virtual PostResult flush(PeerNumber peer) = 0;
  // Whether anything that was posted still awaits something of the peer: what kMessageFence waits
  // for. Looks at all operations.
  virtual bool awaits_peer(PeerNumber peer) const = 0;
  // What peers reach here.
  virtual ExposedMemory& exposed() = 0;

  // Lets messages come and go. How many came, and connections with them.
  virtual uint32_t progress() = 0;
  // progress(), and completions that are there. How many.
  virtual uint32_t poll(std::span<MessageCompletion> completions) = 0;
  // The next completions where they lie, for who reads them without a copy; if there are none, and
  // now and then, progress() first. They stay, and lie there until any other call, until they are
  // dropped from the first one on.
  virtual std::span<const MessageCompletion> poll_in_place() = 0;
  virtual void drop_completions(uint32_t count) = 0;
  // Polls the rings of its peers until one has something, which the next poll() takes, and at
  // most `polls` times, with a pause after each. False: nothing has come by a ring. Makes no
  // progress: for who has just polled in vain and is about to poll again.
  virtual bool rings_have_messages(uint32_t polls) const = 0;

  // How a message to the peer would travel now, and why; from `buffer`, or if that is null from
  // memory that is registered. Control path.
  virtual MessageExplanation explain(PeerNumber peer, uint64_t bytes, const void* buffer) = 0;
  virtual PeerStatistics peer_statistics(PeerNumber peer) const = 0;

  // --- sleeping, with MessengerOptions::events ---

  // Call it when poll() finds nothing more, for a send that would block when progress() found
  // nothing since, and then sleep until event_descriptor() is readable.
  // False: do not sleep, something has come or is under way; poll() again. A ring wakes nobody:
  // peers are asked to leave theirs, and until they have, the descriptor becomes readable every
  // millisecond. They get rings again after some thousand messages without a sleep. Some system
  // calls.
  virtual bool prepare_to_sleep() = 0;
  // For poll() beside other descriptors: readable once something may have come, and every
  // MessengerOptions::max_sleep_ns. -1 without events, and in a simulation.
  virtual int event_descriptor() const = 0;
  // Both: sleeps until something may have come, `timeout_ns` (negative: no limit) or max_sleep_ns
  // have passed. poll() says what it is. Without events it returns at once.
  virtual void wait(int64_t timeout_ns) = 0;

  virtual const Status& error() const = 0;
  virtual const MessengerStatistics& statistics() const = 0;

 protected:
  Messenger() = default;
};

// Control path: registers the rings, listens, and starts two threads. `device` and `domain` must
// outlive the messenger.
//   kInvalidArgument  an option out of range
//   kUnavailable      the port is in use
//   kLimitExceeded    more than the device has, or may be locked
Result<std::unique_ptr<Messenger>> open_messenger(const Device& device,
                                                  const ProtectionDomain& domain,
                                                  const JobSecret& secret,
                                                  const MessengerOptions& options = {});

}  // namespace verbena
