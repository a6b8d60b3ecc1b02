// Request/response over RDMA: five protocols behind one small interface.
//
// A requester writes a request into a registered slot and posts it; the responder's handler writes
// the response straight into another one; the requester finds it by polling. The protocol says
// which verb carries the request and which the response (papers by short name: "patterns" section
// 4.1, "msgproto" table 3):
//
//   send/send, send/write, write/send, write/write    request verb / response verb
//   read          the requester fetches the bytes from the responder's memory itself
//
//   // The requester, after ControlConnection::connect():
//   auto requester = make_requester(Protocol::kWriteWrite, MarkLayout::kLastBit, *device, *domain,
//                                   control, {});
//   memcpy((*requester)->request_buffer(0), "ping", 4);
//   (*requester)->try_post(0, 4);
//   while ((*requester)->poll(on_response) == 0 && (*requester)->status().ok()) {
//   }
//
//   // The responder, after ControlListener::accept():
//   auto responder = make_responder(Protocol::kWriteWrite, MarkLayout::kLastBit, *device, *domain,
//                                   {});
//   (*responder)->connect(control);
//   while ((*responder)->status().ok()) {
//     (*responder)->poll([](const Request& request, std::span<char> response) {
//       return answer(request.bytes, response);  // the size of the response
//     });
//   }
//
// Slots. A requester has `pending` slots, numbered from 0. Each holds one request at a time: fill
// request_buffer(slot), try_post(slot, bytes), and once poll() delivered its response, the slot may
// be posted again. The response's bytes stay valid until then. Posting the slots in turn (0, 1, ...
// pending - 1, 0, ...) costs the responder one poll per request; any other order works too.
//
// Threading: one requester or responder belongs to one thread at a time. Device and protection
// domain must outlive it, a control connection the RDMA connection that it made; whoever closes it
// ends that too. The other way round, a connection that ends, also because its requester or
// responder is destroyed, hangs its control connection up, so that the other side learns of it.
// Cost: after connect, nothing here allocates, locks or enters the kernel for a message. About
// every 10 ms without traffic, a poll checks whether the peer still lives (one system call).
// Polling never blocks and never sleeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/posting.h"
#include "verbena/status.h"

namespace verbena {

enum class Protocol : uint8_t {
  kSendSend,
  kSendWrite,
  kWriteSend,
  kWriteWrite,
  kRead,
  // Leaves the choice open: a responder takes the cheapest one that its device and options allow, a
  // requester the responder's. Never kRead, whose requests are of another kind. design() tells
  // which one it became, and why.
  kAutomatic = 255,
};

// How the receiver of a WRITE recognizes a whole message in the memory it polls. READ and SEND need
// none of them.
enum class MarkLayout : uint8_t {
  kLastBit,        // the last bit of the slot ("patterns" 4.1); the length lies before it
  kLengthMarkers,  // length, marker, bytes, marker; zeroed after use ("msgproto" 3)
  kHeadTail,       // flag and length at the head, alternating flag at the tail ("mpiiba" 4.2)
  kImmediate,      // no mark: WRITE_WITH_IMM, and its completion tells. For devices that do not
                   // place the bytes of a WRITE in order (DeviceInfo::writes_in_order).
  kDense,          // a second WRITE sets a byte of a dense array, which alone is polled ("patterns"
                   // 8, L5): for responders with many requesters of which few are active. Rests on
                   // the order of WRITEs, not of the bytes within one.
  kAutomatic = 255,  // as Protocol::kAutomatic; one may be left open and the other one not
};

// Where requests that consume a receive (SEND, MarkLayout::kImmediate) find one.
enum class ReceiveQueues : uint8_t {
  kShared,         // one shared receive queue and one completion queue for all connections
                   // ("patterns" 4.1): one poll for all, as many receives as are pending in all.
                   // Over kUd the responder's whole queue pair is one for all ("msgproto" 7), so
                   // that its RNIC keeps the state of one, however many requesters there are
  kPerConnection,  // each queue pair has its own of both: a poll per connection, and no requester
                   // can use up another one's receives
};

std::span<const Protocol> all_protocols();
std::span<const MarkLayout> all_mark_layouts();
// "write/write" and so on; "last-bit", "length-markers", "head-tail", "immediate", "dense". The
// lists and the names that are parsed are those of designs, without kAutomatic.
const char* protocol_name(Protocol protocol);
const char* mark_layout_name(MarkLayout layout);
// "shared", "per-connection".
std::span<const ReceiveQueues> all_receive_queues();
const char* receive_queues_name(ReceiveQueues queues);
// The inverse; kInvalidArgument names what there is.
Result<Protocol> parse_protocol(std::string_view name);
Result<MarkLayout> parse_mark_layout(std::string_view name);
Result<ReceiveQueues> parse_receive_queues(std::string_view name);
// Whether a protocol has a WRITE half, so that the mark layout makes a difference.
bool uses_mark_layout(Protocol protocol);
// Whether a layout can only be trusted where DeviceInfo::writes_in_order.
constexpr bool needs_writes_in_order(MarkLayout layout) {
  return layout != MarkLayout::kImmediate && layout != MarkLayout::kDense;
}
inline constexpr MarkLayout kLastMarkLayout = MarkLayout::kDense;

// What messages may travel over. Over kRc all protocols go. Over kUc and kUd send/send goes, and
// over kUc write/write, with kImmediate whatever mark layout is asked for: a request is kept until
// its response came and sent again after a time-out, a response until its slot's next request; the
// handler runs once for each request. "msgproto" 7 leaves this as future work.
std::span<const Transport> all_transports();
// "rc", "uc", "ud", and the inverse.
const char* transport_name(Transport transport);
Result<Transport> parse_transport(std::string_view name);

// Bounds of the options below.
inline constexpr uint32_t kMaxMessageBytes = 1u << 29;
inline constexpr uint32_t kMaxPending = 4096;
inline constexpr uint32_t kMaxConnections = 4096;

struct DesignChoice;  // verbena/design_estimate.h

struct RequesterOptions {
  // Capacity of a request slot and of a response slot; at most what the responder offers.
  uint32_t request_max_bytes = 64;
  uint32_t response_max_bytes = 4096;
  // Requests that may wait for their response at once (R in "msgproto" 4), 1 to kMaxPending. The
  // registered memory is about pending * (request_max_bytes + response_max_bytes).
  uint32_t pending = 1;
  // Messages up to this size travel inside the work request; never more than the device takes.
  uint32_t inline_bytes = kDeviceInlineLimit;
  // Every n-th work request asks for a completion, which frees the send queue ("patterns" 8).
  // 0: a quarter of the send queue's depth.
  uint32_t signal_interval = 0;
  // Work requests that are posted as one list (one doorbell). 1: each at once. Above: when that
  // many are there, and at each poll.
  uint32_t post_batch = 1;
  // Responses that one poll takes at most: whether a thread with several requesters goes on to the
  // next one after each response, or first takes all there are. 0: all (READ: 16).
  uint32_t poll_batch = 0;
  // Makes wait() possible where responses raise completions (the response verb SEND,
  // MarkLayout::kImmediate, READ). Costs the device a check per message.
  bool blocking = false;
  // Slots in 2 MiB pages, so that the device needs fewer translations ("patterns" 8). Where the
  // system has none to give, in usual ones.
  bool huge_pages = false;
  // Where responses take receives of this connection (the response verb SEND, kImmediate): some
  // more than can be pending, so that the device has fetched them before a response needs one, and
  // used ones go back in lists. Without: as many as can be pending, each posted anew before its
  // slot's next request ("one receive event for every SEND", "msgproto" 4.1); an RNIC then fetches
  // it while the response waits.
  bool receive_slack = true;
  // The same at both sides. kUd: requests and responses of at most the MTU of both ports, 256 to
  // 4096 bytes.
  Transport transport = Transport::kRc;
  // kUc, kUd: a request without its response is sent again after this time, then after twice as
  // long, up to 32 times as long; by poll(), so only while that is called. What is too short costs
  // copies, nothing else. 1000 to 10^10.
  int64_t resend_after_ns = 1'000'000;
  // kUc, kUd: sent again so often in vain, a request ends the connection: kUnavailable. With the
  // default time after some 10 s. At most 10^6.
  uint32_t resend_limit = 300;
  // For each step of the handshake with the peer.
  int64_t handshake_timeout_ns = 10'000'000'000;
};

struct ResponderOptions {
  // The largest that a requester may ask for; its own numbers decide what its connection takes.
  uint32_t request_max_bytes = 64;
  uint32_t response_max_bytes = 4096;
  uint32_t pending = 1;
  // Connections that may be alive at once, 1 to kMaxConnections.
  uint32_t max_connections = 1;
  uint32_t inline_bytes = kDeviceInlineLimit;
  uint32_t signal_interval = 0;
  uint32_t post_batch = 1;
  // Receives in the shared receive queue, which takes the requests of all connections where they
  // come by SEND ("patterns" 4.1). 0: enough for max_connections * pending, so that no sender ever
  // meets an empty queue. Fewer save memory and cost a retry (RNR) when they run out. kUd: 0 is no
  // more than a receive queue of the device takes; what finds no receive is lost and sent again.
  uint32_t receive_depth = 0;
  // kUc: always per connection. kUd, shared: max_connections * pending, this one rounded up to a
  // power of two, is at most 65,536 (kLimitExceeded).
  ReceiveQueues receive_queues = ReceiveQueues::kShared;
  Transport transport = Transport::kRc;  // as above
  bool blocking = false;                 // as above, for requests
  bool huge_pages = false;               // as above
  // READ only: the memory that requesters may read, registered by the responder while it lives.
  // Empty: response_max_bytes of zeros.
  std::span<char> readable;
  int64_t handshake_timeout_ns = 10'000'000'000;
};

// What has passed a connection so far; seen from either side. The polls and copied bytes that it
// took are counted by thread: verbena/data_path.h.
struct ConnectionStatistics {
  uint64_t requests = 0;
  uint64_t responses = 0;
  uint64_t request_bytes = 0;
  uint64_t response_bytes = 0;
  uint64_t would_block = 0;  // posts that met a full send queue
  // kUc, kUd: messages of this side that were sent again, and arrivals that were not used because
  // their message had come before.
  uint64_t resent = 0;
  uint64_t duplicates = 0;
};

struct Response {
  uint32_t slot;
  std::span<const char> bytes;
};

// What a handler returns instead of a size to end the connection of a request that makes no sense:
// its status then is kProtocolViolation.
inline constexpr uint32_t kBreakConnection = ~0u;

struct Request {
  uint32_t connection;  // in order of connect(), from 0; numbers of dead connections are reused
  uint32_t slot;
  // In registered memory that the requester's device writes. A requester that breaks the protocol
  // can change the bytes while they are read: copy what is checked first and used later.
  std::span<const char> bytes;
};

// What a request of the READ protocol consists of: put it at the start of the request buffer.
struct ReadRequest {
  uint64_t offset;  // into the responder's readable memory
  uint32_t bytes;   // at most response_max_bytes
  uint32_t reserved = 0;
};

class Requester {
 public:
  virtual ~Requester() = default;
  Requester(const Requester&) = delete;
  Requester& operator=(const Requester&) = delete;

  // Where the next request of `slot` is written: registered memory of request_max_bytes, aligned to
  // 8 bytes, the same address each time. Write only the bytes that you post: with
  // MarkLayout::kHeadTail, what lies behind them must be what was sent last.
  virtual char* request_buffer(uint32_t slot) = 0;

  // Sends the first `bytes` of the slot's request buffer. The buffer must not change until the
  // response came. Never blocks. kWouldBlock: the slot still waits for its response, or the send
  // queue is full. kFailed: see status(); also for a slot or a size beyond the options, or a READ
  // outside the responder's memory: the status then is kInvalidArgument.
  virtual PostResult try_post(uint32_t slot, uint32_t bytes) = 0;

  // Takes the responses that have arrived, at most as many as `out` has room for and as
  // RequesterOptions::poll_batch allows. Their bytes stay valid until their slot is posted again.
  virtual uint32_t poll(std::span<Response> out) = 0;

  // The same with `on_response(uint32_t slot, std::span<const char> response)` for each; it may
  // post any slot, this one too, and poll.
  template <typename OnResponse,
            typename =
                std::enable_if_t<std::is_invocable_v<OnResponse&, uint32_t, std::span<const char>>>>
  uint32_t poll(OnResponse&& on_response) {
    Response responses[16];
    const uint32_t count = poll(std::span<Response>(responses));
    for (uint32_t i = 0; i < count; ++i) on_response(responses[i].slot, responses[i].bytes);
    return count;
  }

  // Sleeps until a response may have arrived, at most for `timeout_ns` (negative: no limit) and
  // 10 ms; then poll again. False at once where nothing can wake it: RequesterOptions::blocking is
  // off, or responses are found by polling memory. Enters the kernel.
  virtual bool wait(int64_t timeout_ns) = 0;

  // Ok while the connection works. kUnavailable, naming the peer and the cause, once it is gone;
  // kProtocolViolation if the peer broke the protocol. Requests that wait then get no response.
  virtual const Status& status() const = 0;

  // Ends the connection: outstanding requests get no response, later posts fail.
  virtual void close() = 0;

  virtual const ConnectionStatistics& statistics() const = 0;
  // What the connection uses; kImmediate where one of the devices does not write in order.
  virtual MarkLayout mark_layout() const = 0;
  // What the connection uses, what it costs, and who chose it. Computed when it is asked for:
  // control path.
  virtual DesignChoice design() const = 0;
  virtual uint32_t pending() const = 0;
  virtual uint32_t request_max_bytes() const = 0;
  virtual uint32_t response_max_bytes() const = 0;

 protected:
  Requester() = default;
};

// A function to call for each request: a reference to a callable, which must outlive it.
class RequestHandler {
 public:
  template <typename Callable,
            typename = std::enable_if_t<!std::is_same_v<std::decay_t<Callable>, RequestHandler>>>
  RequestHandler(Callable& callable)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(&callable))),
        call_([](void* object, const Request& request, std::span<char> response) {
          return static_cast<uint32_t>((*static_cast<Callable*>(object))(request, response));
        }) {}

  uint32_t operator()(const Request& request, std::span<char> response) const {
    return call_(object_, request, response);
  }

 private:
  void* object_;
  uint32_t (*call_)(void*, const Request&, std::span<char>);
};

class Responder {
 public:
  virtual ~Responder() = default;
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;

  // Takes a requester in: both sides agree on the design and connect their queue pairs. Control
  // path, blocks up to the handshake's time-out. On failure nothing remains; a refused requester
  // learns why.
  //   kInvalidArgument    the requester wants another protocol, mark layout or larger slots
  //   kLimitExceeded      max_connections are alive, or a limit of the device
  //   kProtocolViolation  what it sent is not Verbena's handshake
  virtual Status connect(ControlConnection& control) = 0;

  // Answers the requests that have arrived, at most `pending` per connection, and returns how many.
  // `handler(const Request& request, std::span<char> response)` writes the response from the start
  // of the given buffer (response_max_bytes of the connection) and returns its size. It must not
  // write behind that (see Requester::request_buffer), nor keep the request.
  template <typename Handler>
  uint32_t poll(Handler&& handler) {
    return poll_with(RequestHandler(handler));
  }
  virtual uint32_t poll_with(RequestHandler handler) = 0;

  // Sleeps until a request may have arrived, as Requester::wait().
  virtual bool wait(int64_t timeout_ns) = 0;

  // Connections that are alive.
  virtual uint32_t connections() const = 0;
  // The number of the connection that the last successful connect() made.
  virtual uint32_t latest_connection() const = 0;
  // Ok until every connection has ended; then why the last one did (kUnavailable if its requester
  // left or died). A further connect() makes it ok again.
  virtual const Status& status() const = 0;
  // Why a connection ended; ok while it is alive.
  virtual const Status& status(uint32_t connection) const = 0;
  // Of a connection, also after its end. READs leave no trace at the responder: all zero.
  virtual const ConnectionStatistics& statistics(uint32_t connection) const = 0;

  // What all connections use; kImmediate where the device does not write in order.
  virtual MarkLayout mark_layout() const = 0;
  // As Requester::design(), for messages of the largest size and as many connections as are
  // allowed.
  virtual DesignChoice design() const = 0;

 protected:
  Responder() = default;
};

// Connects to the responder at the other end of `control`, which calls Responder::connect().
// Blocks up to the handshake's time-out. `layout` is ignored by protocols without a WRITE half.
//   kInvalidArgument    an option is out of range, or the responder runs another design
//                       (kAutomatic takes any)
//   kLimitExceeded      a limit of the device or of the process: what was asked, and what there is
//   kUnavailable        the peer is gone
//   kUnsupported        the transport does not go with the protocol or the device
Result<std::unique_ptr<Requester>> make_requester(Protocol protocol, MarkLayout layout,
                                                  const Device& device,
                                                  const ProtectionDomain& domain,
                                                  ControlConnection& control,
                                                  const RequesterOptions& options);

// A responder without connections yet. kUnsupported: kAutomatic, and no design can be used here;
// the message has the reason for the first one. Or the transport, as above.
Result<std::unique_ptr<Responder>> make_responder(Protocol protocol, MarkLayout layout,
                                                  const Device& device,
                                                  const ProtectionDomain& domain,
                                                  const ResponderOptions& options);

}  // namespace verbena
