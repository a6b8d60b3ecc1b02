// SEND/SEND over queue pairs that lose messages, unreliable connections (UC) and datagrams (UD),
// and WRITE/WRITE over UC. The reliability that they lack is here, per slot ("msgproto" 7; as in
// HERD, FaSST and eRPC).
//
//   requester                                      responder
//   request slots, R x L  --SEND, imm = slot,-->   own receives, buffers of L
//     kept until its         generation              next generation: handler, response kept
//     response came, sent                            same as last: the kept response again
//     again after a while                            any other: nothing
//   own receives,          <--SEND, imm = slot,--  response slots, R x V
//   buffers of V             generation
//     generation of the waiting request: user
//     any other: nothing
//
// WRITE/WRITE is the same with WRITE_WITH_IMM: a message lands in the peer's slot, and takes a
// receive without a buffer. A mark in the slot would not do: nobody could tell a copy from the
// message before.
//
// A slot has one request at a time, and the next one only once the response of the last came. So
// the responder knows what it can meet: the generation behind the last one, which no handler has
// seen, or the last one again, of which the response, the request's copy, or only patience was
// lost. The handler runs once for each. Older ones are copies that somebody kept on the way.
//
// A copy may still wait in the send queue when its slot is filled anew, and then carries the old
// generation and any bytes: nobody reads them, since the peer is done with that generation. A WRITE
// puts them into the peer's slot, where the next message, which UC keeps behind it, replaces them
// before it is told of.
//
// Only the requester has a clock: it reads it once in 16 polls that found nothing. What it takes
// for lost is counted from the first look at the clock after the post, so a post reads none. UD: a
// requester has a queue pair for each connection. Its key is drawn, so it meets no datagrams of an
// earlier one. A responder has one for each connection, too, or one for all (datagram_responder.h).
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "src/channel/send_channel.h"
#include "src/channel/write_immediate_channel.h"
#include "src/connect/event_wait.h"
#include "src/rpc/design_point.h"
#include "src/rpc/endpoint_memory.h"
#include "src/rpc/negotiation.h"
#include "src/rpc/requester_base.h"
#include "src/rpc/requester_control.h"
#include "src/rpc/responder_base.h"
#include "src/rpc/responder_control.h"
#include "src/rpc/unreliable_answer.h"
#include "src/rpc/unreliable_end.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

// --- requester ---

// When a requester looks for requests that have waited too long.
class ResendClock {
 public:
  explicit ResendClock(int64_t resend_after_ns)
      : resend_after_ns_(static_cast<uint64_t>(resend_after_ns)) {}

  // Called once per poll with what it found: an addition. True: look, at the time now_ns().
  bool due(uint32_t found) {
    looks_ += found != 0 ? 1 : kIdleWeight;
    if (looks_ < kLooksPerClock) [[likely]]
      return false;
    return tick_is_over();
  }
  // After a sleep: the next call looks at the clock.
  void hurry() { looks_ = kLooksPerClock; }

  uint64_t now_ns() const { return now_ns_; }
  // Whether a request that was sent so many times, the last time at `since_ns`, has waited too
  // long.
  bool overdue(uint64_t since_ns, uint32_t sent) const {
    return now_ns_ - since_ns >= resend_after_ns_ << std::min(sent - 1, kMostDoublings);
  }

 private:
  static constexpr uint32_t kLooksPerClock = 1024;
  static constexpr uint32_t kIdleWeight = 64;
  static constexpr uint32_t kMostDoublings = 5;
  static constexpr uint32_t kTicks = 4;  // of the shortest wait

  bool tick_is_over();

  uint64_t resend_after_ns_;
  uint64_t now_ns_ = 0;
  uint32_t looks_ = 0;
};

// A request without its response.
struct KeptRequest {
  uint32_t generation = 0;  // of the slot's latest request
  uint32_t bytes = 0;
  uint32_t sent = 0;      // times
  uint64_t since_ns = 0;  // when that was; 0: since the last look at the clock
};

Status check_resending(const RequesterOptions& options);
Status never_answered(const KeptRequest& request, uint32_t slot, const std::string& peer);

template <Transport kTransport, Protocol kProtocol>
class UnreliableRequester final : public RequesterBase {
 public:
  static Result<std::unique_ptr<UnreliableRequester>> create(const Device& device,
                                                             const ProtectionDomain& domain,
                                                             ControlConnection& control,
                                                             const RequesterOptions& options) {
    VERBENA_ASSIGN_OR_RETURN(
        const DesignAgreement agreed,
        request_design(kProtocol, MarkLayout::kImmediate, device, control, options));
    return connect(device, domain, control, options, agreed);
  }

  // The part behind request_design().
  static Result<std::unique_ptr<UnreliableRequester>> connect(const Device& device,
                                                              const ProtectionDomain& domain,
                                                              ControlConnection& control,
                                                              const RequesterOptions& options,
                                                              const DesignAgreement& agreed) {
    std::unique_ptr<UnreliableRequester> requester(
        new UnreliableRequester(device, control, options, agreed));
    UnreliableEnd& end = requester->end_;
    Result<EndpointMemory> mine = [&]() -> Result<EndpointMemory> {
      VERBENA_RETURN_IF_ERROR(check_built_for(kTransport, agreed.transport));
      VERBENA_RETURN_IF_ERROR(check_resending(options));
      EndOptions ends = end_options(options);
      if (options.blocking) {
        VERBENA_RETURN_IF_ERROR(requester->events_.enable(device));
        ends.events = requester->events_.channel();
      }
      return end.prepare(kTransport, kProtocol, device, domain, ends);
    }();
    VERBENA_ASSIGN_OR_RETURN(
        const EndpointMemory theirs,
        join(control, end.endpoint(), mine, end.needs(), options.handshake_timeout_ns));
    end.start(theirs);
    for (KeptRequest& request : requester->kept_) {
      request.generation = end.generations().bounded(theirs.generation);
    }
    requester->set_connected();
    return requester;
  }

  char* request_buffer(uint32_t slot) override { return end_.payload(slot); }

  PostResult try_post(uint32_t slot, uint32_t bytes) override {
    if (slot >= slots_.size() || bytes > request_max_bytes_) [[unlikely]] {
      return fail(misused_post(slot, bytes, pending(), request_max_bytes_));
    }
    if (slots_[slot] != SlotState::kFree) [[unlikely]]
      return not_free(slot);
    if (!end_.queue().has_room()) [[unlikely]] {
      ++statistics_.would_block;
      return no_room();
    }
    KeptRequest& request = kept_[slot];
    request.generation = end_.generations().next(request.generation);
    request.bytes = bytes;
    request.sent = 1;
    request.since_ns = 0;
    slots_[slot] = SlotState::kWaiting;
    if (!receive_slack_) give_back_held(slot);
    if (!end_.post(slot, request.generation, bytes)) [[unlikely]]
      return no_room();
    // With slack, a receive for the response is posted already.
    if (receive_slack_) give_back_held(slot);
    ++statistics_.requests;
    statistics_.request_bytes += bytes;
    return PostResult::kPosted;
  }

  uint32_t poll(std::span<Response> out) override {
    return poll_at_most(
        static_cast<uint32_t>(std::min<size_t>(out.size(), poll_batch_)),
        [&out, count = uint32_t{0}](uint32_t slot, std::span<const char> bytes) mutable {
          out[count++] = {slot, bytes};
        });
  }

  template <typename OnResponse,
            typename =
                std::enable_if_t<std::is_invocable_v<OnResponse&, uint32_t, std::span<const char>>>>
  uint32_t poll(OnResponse&& on_response) {
    return poll_at_most(poll_batch_, on_response);
  }

  bool wait(int64_t timeout_ns) override {
    if (events_.channel() == nullptr) return false;
    end_.queue().flush();
    if (!connect::EventWait::arm(end_.arrivals().queue())) return false;
    const bool in_time = timeout_ns >= 0 && timeout_ns < resend_after_ns_;
    if (end_.arrivals().next() == nullptr) {
      events_.sleep_for(in_time ? timeout_ns : resend_after_ns_);
    }
    clock_.hurry();
    watch_.hurry();
    return true;
  }

  MarkLayout mark_layout() const override { return MarkLayout::kImmediate; }
  uint32_t response_max_bytes() const override { return response_max_bytes_; }

 private:
  static constexpr uint32_t kNone = ~0u;

  UnreliableRequester(const Device& device, ControlConnection& control,
                      const RequesterOptions& options, const DesignAgreement& agreed)
      : RequesterBase(device, control, options, agreed, options.request_max_bytes, options.pending),
        response_max_bytes_(options.response_max_bytes),
        receive_slack_(options.receive_slack),
        resend_after_ns_(options.resend_after_ns),
        resend_limit_(options.resend_limit),
        clock_(options.resend_after_ns),
        kept_(options.pending),
        held_(options.pending, kNone) {}

  QueuePair& queue_pair() override { return end_.queue_pair(); }

  template <typename OnResponse>
  uint32_t poll_at_most(uint32_t limit, OnResponse&& on_response) {
    end_.queue().flush();
    channel::CompletionBatch& arrivals = end_.arrivals();
    uint32_t found = 0;
    for (uint32_t looked = 0; found < limit && looked < end_.receives(); ++looked) {
      const ibv_wc* completion = arrivals.next();
      if (completion == nullptr) break;
      // Before it is delivered: whoever gets it may poll, too.
      arrivals.take();
      found += take(*completion, on_response) ? 1 : 0;
    }
    if (clock_.due(found)) [[unlikely]]
      send_again();
    if (watch_.due(found)) [[unlikely]]
      check_peer();
    return found;
  }

  template <typename OnResponse>
  bool take(const ibv_wc& completion, OnResponse& on_response) {
    if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
      if (!error_) error_ = channel::ChannelError::completed_with(completion.status);
      watch_.hurry();
      return false;
    }
    if (!end_.is_of_peer<kTransport>(completion)) [[unlikely]] {
      end_.give_back(completion.wr_id);
      return false;
    }
    const char* violation = end_.violation<kTransport>(completion);
    if (violation != nullptr) [[unlikely]] {
      error_ = channel::ChannelError::peer_violated(violation);
      watch_.hurry();
      return false;
    }
    const uint32_t immediate = ntohl(completion.imm_data);
    const uint32_t slot = end_.generations().slot(immediate);
    if (slots_[slot] != SlotState::kWaiting ||
        end_.generations().generation(immediate) != kept_[slot].generation) [[unlikely]] {
      end_.give_back(completion.wr_id);
      ++statistics_.duplicates;
      return false;
    }
    const uint32_t bytes = completion.byte_len - UnreliableEnd::header_bytes(kTransport);
    VERBENA_DEBUG_ASSERT(held_[slot] == kNone);
    held_[slot] = static_cast<uint32_t>(completion.wr_id);
    slots_[slot] = SlotState::kFree;
    ++statistics_.responses;
    statistics_.response_bytes += bytes;
    on_response(slot, std::span<const char>(end_.message(completion.wr_id, slot), bytes));
    return true;
  }

  // The response in `slot` was used.
  void give_back_held(uint32_t slot) {
    if (held_[slot] != kNone) end_.give_back(std::exchange(held_[slot], kNone));
  }

  void send_again() {
    // What has its turn below must not be in the list that is still to be posted.
    end_.queue().flush();
    for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
      KeptRequest& request = kept_[slot];
      if (slots_[slot] != SlotState::kWaiting) continue;
      if (request.since_ns == 0) {
        request.since_ns = clock_.now_ns();
      } else if (clock_.overdue(request.since_ns, request.sent)) {
        if (request.sent > resend_limit_) {
          fail(never_answered(request, slot, peer()));
          return;
        }
        if (!end_.queue().has_room()) break;
        end_.post(slot, request.generation, request.bytes);
        ++request.sent;
        request.since_ns = clock_.now_ns();
        ++statistics_.resent;
      }
    }
    end_.queue().flush();
  }

  PostResult no_room() { return fail_if_broken() ? PostResult::kFailed : PostResult::kWouldBlock; }

  bool fail_if_broken() {
    const channel::ChannelError& sending = end_.queue().error();
    const channel::ChannelError receiving = error_ ? error_ : end_.receive_error();
    if (!sending && !receiving) return false;
    fail(sending, receiving);
    return true;
  }

  void check_peer() {
    if (!status_.ok()) return;
    end_.queue().reap();
    if (fail_if_broken()) return;
    fail_if_peer_is_gone();
  }

  UnreliableEnd end_;
  uint32_t response_max_bytes_;
  bool receive_slack_;
  int64_t resend_after_ns_;
  uint32_t resend_limit_;
  ResendClock clock_;
  std::vector<KeptRequest> kept_;  // by slot
  std::vector<uint32_t> held_;     // by slot: the receive whose buffer holds its response
  channel::ChannelError error_;    // of arrivals
};

// --- responder ---

struct OwnEndConnection : UnreliableConnection {
  using UnreliableConnection::UnreliableConnection;
  // Nothing can be done about a queue pair that cannot even fail.
  void stop() { static_cast<void>(end.queue_pair().to_error()); }

  UnreliableEnd end;
  channel::ChannelError error;  // of arrivals
};

template <Transport kTransport, Protocol kProtocol>
class UnreliableResponder final : public ResponderBase<OwnEndConnection> {
  using Connection = OwnEndConnection;

 public:
  static Result<std::unique_ptr<UnreliableResponder>> create(const Device& device,
                                                             const ProtectionDomain& domain,
                                                             const ResponderOptions& options) {
    VERBENA_RETURN_IF_ERROR(check_responder_options(options, kTransport));
    // Before anybody connects: with the sizes that are offered.
    VERBENA_RETURN_IF_ERROR(
        size_unreliable_end(kTransport, kProtocol, device.info(), offered_ends(device, options))
            .status());
    std::unique_ptr<UnreliableResponder> responder(
        new UnreliableResponder(device, domain, options));
    if (options.blocking) VERBENA_RETURN_IF_ERROR(responder->events_.enable(device));
    return responder;
  }

  ~UnreliableResponder() override { drop_connections(); }

  Status connect(ControlConnection& control) override {
    VERBENA_ASSIGN_OR_RETURN(
        const DesignRequest agreed,
        accept_design(control,
                      offered_design(kProtocol, MarkLayout::kImmediate, *device_, options_),
                      options_.handshake_timeout_ns));
    auto connection = std::make_unique<Connection>(control, agreed);
    const Result<EndpointMemory> mine = [&]() -> Result<EndpointMemory> {
      VERBENA_ASSIGN_OR_RETURN(connection->number, free_number());
      EndOptions ends = end_options(options_, agreed);
      ends.connection = connection->number;
      ends.events = events_.channel();
      return connection->end.prepare(kTransport, kProtocol, *device_, *domain_, ends);
    }();
    VERBENA_ASSIGN_OR_RETURN(const EndpointMemory theirs,
                             join(control, connection->end.endpoint(), mine,
                                  connection->end.needs(), options_.handshake_timeout_ns));
    connection->end.start(theirs);
    add(std::move(connection));
    return Status::ok_status();
  }

  uint32_t poll_with(RequestHandler handler) override { return answer_all(handler); }

  template <typename Handler>
  uint32_t poll(Handler&& handler) {
    return answer_all(handler);
  }

  bool wait(int64_t timeout_ns) override {
    if (events_.channel() == nullptr) return false;
    for (Connection* connection : alive_) {
      if (!connect::EventWait::arm(connection->end.arrivals().queue())) return false;
    }
    for (Connection* connection : alive_) {
      if (connection->end.arrivals().next() != nullptr) return true;
    }
    events_.sleep_for(timeout_ns);
    watch_.hurry();
    return true;
  }

 private:
  UnreliableResponder(const Device& device, const ProtectionDomain& domain,
                      const ResponderOptions& options)
      : ResponderBase(kProtocol, MarkLayout::kImmediate, device, domain, options) {}

  static EndOptions offered_ends(const Device& device, const ResponderOptions& options) {
    return end_options(options, offered_design(kProtocol, MarkLayout::kImmediate, device, options));
  }

  template <typename Handler>
  uint32_t answer_all(Handler& handler) {
    uint32_t answered = 0;
    for (Connection* connection : alive_) answered += answer_arrivals(*connection, handler);
    if (watch_.due(answered)) [[unlikely]]
      check_peers();
    return answered;
  }

  template <typename Handler>
  uint32_t answer_arrivals(Connection& connection, Handler& handler) {
    UnreliableEnd& end = connection.end;
    channel::CompletionBatch& arrivals = end.arrivals();
    ++polls_;
    // What finds no room for its response stays where it is.
    const uint32_t most = std::min(end.receives(), end.queue().room());
    uint32_t answered = 0;
    for (uint32_t looked = 0; looked < most; ++looked) {
      const ibv_wc* completion = arrivals.next();
      if (completion == nullptr) break;
      answered += take(connection, *completion, handler) ? 1 : 0;
      arrivals.take();
      if (!connection.status.ok()) [[unlikely]]
        break;
    }
    end.queue().flush();
    return answered;
  }

  template <typename Handler>
  bool take(Connection& connection, const ibv_wc& completion, Handler& handler) {
    UnreliableEnd& end = connection.end;
    if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
      note(connection, channel::ChannelError::completed_with(completion.status));
      return false;
    }
    if (!end.is_of_peer<kTransport>(completion)) [[unlikely]] {
      end.give_back(completion.wr_id);
      return false;
    }
    const char* violation = end.violation<kTransport>(completion);
    if (violation != nullptr) [[unlikely]] {
      note(connection, channel::ChannelError::peer_violated(violation));
      return false;
    }
    const bool is_new = answer_request(end, connection, completion, polls_, handler);
    if (!connection.status.ok()) [[unlikely]]
      watch_.hurry();  // to end it; not from inside the loop over connections
    end.give_back(completion.wr_id);
    return is_new;
  }

  void note(Connection& connection, const channel::ChannelError& error) {
    if (!connection.error) connection.error = error;
    watch_.hurry();
  }

  void check_peers() {
    // Backwards: ending one takes it out of the list.
    for (size_t i = alive_.size(); i-- > 0;) check_connection(*alive_[i]);
    ended_.clear();
  }

  void check_connection(Connection& connection) {
    channel::SendQueue& queue = connection.end.queue();
    queue.reap();
    const channel::ChannelError receiving =
        connection.error ? connection.error : connection.end.receive_error();
    if (!connection.status.ok()) {
      end(connection, connection.status.get());
    } else if (queue.error() || receiving) {
      end(connection,
          connect::diagnose(queue.error(), receiving, *connection.control, connection.peer()));
    } else if (peer_is_gone(connection)) {
      end(connection, connect::peer_is_gone(connection.peer()));
    }
  }

  connect::EventWait events_;
  uint64_t polls_ = 0;  // of connections
};

// --- the design ---

template <Transport kUsed, Protocol kUsedProtocol, typename Channel>
struct UnreliableDesign {
  static_assert(kUsed != Transport::kRc);
  static constexpr Protocol kProtocol = kUsedProtocol;
  static constexpr MarkLayout kLayout = MarkLayout::kImmediate;
  static constexpr ReceiveQueues kReceiveQueues = ReceiveQueues::kPerConnection;
  static constexpr Transport kTransport = kUsed;
  // What messages cost that are not lost: as over a reliable connection.
  using RequestChannel = Channel;
  using ResponseChannel = Channel;
  using Requester = UnreliableRequester<kUsed, kUsedProtocol>;
  using Responder = UnreliableResponder<kUsed, kUsedProtocol>;

  static DesignCost cost(uint32_t request_bytes, uint32_t response_bytes,
                         const channel::CostInputs& requester,
                         const channel::CostInputs& responder) {
    return cost_of_pair<RequestChannel, ResponseChannel>(request_bytes, response_bytes, requester,
                                                         responder);
  }
};

template <Transport kUsed>
using UnreliableSendSend = UnreliableDesign<kUsed, Protocol::kSendSend, channel::SendChannel>;
using UnreliableWriteWrite =
    UnreliableDesign<Transport::kUc, Protocol::kWriteWrite, channel::WriteImmediateChannel>;

}  // namespace verbena::rpc
