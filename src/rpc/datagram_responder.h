// The responder of SEND/SEND over datagrams with one queue pair for all connections ("msgproto" 7;
// as in HERD, FaSST and eRPC).
//
//   requesters, a queue pair each                 responder, one queue pair
//     any of them        --SEND, imm = slot of   receives for all
//                          the queue pair, -->     slot -> connection -> handler
//                          generation
//     own receives       <--SEND, the same --    response slots: a part for each connection
//
// However many requesters there are, the RNIC keeps the state of one queue pair here, and the
// responder polls one completion queue. In exchange a requester that sends what nobody asked for
// takes receives of all others; what finds none is sent again. A connection's messages are known by
// their slots, and by the number of the queue pair that sent them. A connection begins with a
// generation that is drawn, so that it takes no datagram of the one that had its slots before.
//
// The queue pair outlives its connections. If it fails, all of them end, and the next one gets a
// new queue pair. No requester's message makes it fail: receives have room for any datagram.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

#include "src/base/runtime.h"
#include "src/connect/event_wait.h"
#include "src/rpc/unreliable.h"

namespace verbena::rpc {

struct DatagramConnection : UnreliableConnection {
  using UnreliableConnection::UnreliableConnection;
  // The queue pair is that of others, too.
  void stop() {}

  DatagramPeer requester;
  uint64_t last_post = 0;  // of the send queue's, to this requester
};

class DatagramResponder final : public ResponderBase<DatagramConnection> {
  using Connection = DatagramConnection;

 public:
  static Result<std::unique_ptr<DatagramResponder>> create(const Device& device,
                                                           const ProtectionDomain& domain,
                                                           const ResponderOptions& options) {
    VERBENA_RETURN_IF_ERROR(check_responder_options(options, Transport::kUd));
    std::unique_ptr<DatagramResponder> responder(new DatagramResponder(device, domain, options));
    if (options.blocking) VERBENA_RETURN_IF_ERROR(responder->events_.enable(device));
    VERBENA_RETURN_IF_ERROR(responder->make_end());
    return responder;
  }

  // Nothing addresses a requester any more once the queue pair is gone.
  ~DatagramResponder() override {
    end_.reset();
    drop_connections();
  }

  Status connect(ControlConnection& control) override {
    VERBENA_ASSIGN_OR_RETURN(
        const DesignRequest agreed,
        accept_design(
            control,
            offered_design(Protocol::kSendSend, MarkLayout::kImmediate, *device_, options_),
            options_.handshake_timeout_ns));
    auto connection = std::make_unique<Connection>(control, agreed);
    const Result<EndpointMemory> mine = [&]() -> Result<EndpointMemory> {
      VERBENA_RETURN_IF_ERROR(replace_failed_end());
      VERBENA_ASSIGN_OR_RETURN(connection->number, free_number());
      connection->first_slot = connection->number << slot_bits_;
      EndpointMemory memory;
      memory.connection = connection->number;
      memory.first_slot = connection->first_slot;
      memory.queue_pair_slots = end_->slots();
      secure_random(&memory.generation, sizeof(memory.generation));
      return memory;
    }();
    // The bound is that of the requester's slots.
    const EndpointNeeds needs = {.queue_pair_slots = agreed.pending};
    VERBENA_RETURN_IF_ERROR(join(control, mine.ok() ? &end_->queue_pair() : nullptr,
                                 &connection->requester, mine, needs, options_.handshake_timeout_ns)
                                .status());
    for (KeptResponse& kept : connection->kept) {
      kept.generation = end_->generations().bounded(mine->generation);
    }
    end_->direct(connection->first_slot, agreed.pending, connection->requester);
    add(std::move(connection));
    return Status::ok_status();
  }

  // Of all connections; another one once it has failed.
  QueuePair& queue_pair() { return end_->queue_pair(); }

  uint32_t poll_with(RequestHandler handler) override { return answer_all(handler); }

  template <typename Handler>
  uint32_t poll(Handler&& handler) {
    return answer_all(handler);
  }

  bool wait(int64_t timeout_ns) override {
    if (events_.channel() == nullptr) return false;
    if (!connect::EventWait::arm(end_->arrivals().queue())) return false;
    if (end_->arrivals().next() != nullptr) return true;
    events_.sleep_for(timeout_ns);
    watch_.hurry();
    return true;
  }

 private:
  DatagramResponder(const Device& device, const ProtectionDomain& domain,
                    const ResponderOptions& options)
      : ResponderBase(Protocol::kSendSend, MarkLayout::kImmediate, device, domain, options),
        slot_bits_(std::bit_width(options.pending - 1)) {}

  // Nobody may have polled since the queue pair failed.
  Status replace_failed_end() {
    end_->queue().reap();
    const ibv_wc* const completion = end_->arrivals().next();
    if (completion != nullptr && completion->status != IBV_WC_SUCCESS && !error_) {
      error_ = channel::ChannelError::completed_with(completion->status);
    }
    if (!failed()) return Status::ok_status();
    for (size_t i = alive_.size(); i-- > 0;) check_connection(*alive_[i]);
    return make_end();
  }

  // Where that fails, the former end stays.
  Status make_end() {
    EndOptions options = shared_end_options(*device_, options_);
    options.events = events_.channel();
    auto end = std::make_unique<UnreliableEnd>();
    VERBENA_RETURN_IF_ERROR(
        end->prepare(Transport::kUd, Protocol::kSendSend, *device_, *domain_, options).status());
    VERBENA_RETURN_IF_ERROR(end->start_shared());
    end_ = std::move(end);
    ended_.clear();  // which the former one may have addressed
    for (const std::unique_ptr<Connection>& connection : connections_) connection->last_post = 0;
    error_ = {};
    return Status::ok_status();
  }

  template <typename Handler>
  uint32_t answer_all(Handler& handler) {
    UnreliableEnd& end = *end_;
    channel::CompletionBatch& arrivals = end.arrivals();
    ++polls_;
    // What finds no room for its response stays where it is.
    const uint32_t most = std::min(end.receives(), end.queue().room());
    uint32_t answered = 0;
    for (uint32_t looked = 0; looked < most; ++looked) {
      const ibv_wc* completion = arrivals.next();
      if (completion == nullptr) break;
      answered += take(*completion, handler) ? 1 : 0;
      arrivals.take();
    }
    end.queue().flush();
    if (watch_.due(answered)) [[unlikely]]
      check_peers();
    return answered;
  }

  template <typename Handler>
  bool take(const ibv_wc& completion, Handler& handler) {
    if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
      if (!error_) error_ = channel::ChannelError::completed_with(completion.status);
      watch_.hurry();
      return false;
    }
    Connection* connection = sender_of(completion);
    const bool is_new = connection != nullptr && take(*connection, completion, handler);
    end_->give_back(completion.wr_id);
    return is_new;
  }

  // Null for datagrams of strangers, of connections that have ended, and for their slots.
  Connection* sender_of(const ibv_wc& completion) {
    if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0) [[unlikely]]
      return nullptr;
    const uint32_t slot = end_->generations().slot(ntohl(completion.imm_data));
    const uint32_t number = slot >> slot_bits_;
    if (number >= connections_.size()) [[unlikely]]
      return nullptr;
    Connection& connection = *connections_[number];
    if (!connection.status.ok() || completion.src_qp != connection.requester.queue_pair_number())
        [[unlikely]] {
      return nullptr;
    }
    return &connection;
  }

  template <typename Handler>
  bool take(Connection& connection, const ibv_wc& completion, Handler& handler) {
    const char* violation = end_->violation<Transport::kUd>(completion);
    if (violation == nullptr) [[likely]] {
      const uint32_t slot =
          end_->generations().slot(ntohl(completion.imm_data)) - connection.first_slot;
      if (slot >= connection.kept.size()) {
        violation = "its message names a slot that it does not have";
      } else if (end_->message(completion, 0).size() > connection.request_max_bytes) {
        violation = "its message is larger than agreed";
      }
    }
    if (violation != nullptr) [[unlikely]] {
      connection.status = connect::explain_failure(channel::ChannelError::peer_violated(violation),
                                                   connection.peer());
      watch_.hurry();  // to end it; not while its messages are being taken
      return false;
    }
    const bool is_new = answer_request(*end_, connection, completion, polls_, handler);
    connection.last_post = end_->queue().posted();
    if (!connection.status.ok()) [[unlikely]]
      watch_.hurry();
    return is_new;
  }

  // Whether the queue pair is of no use any more.
  bool failed() const { return end_->queue().error() || receive_error(); }
  channel::ChannelError receive_error() const { return error_ ? error_ : end_->receive_error(); }

  void check_peers() {
    end_->queue().reap();
    // Backwards: ending one takes it out of the list.
    for (size_t i = alive_.size(); i-- > 0;) check_connection(*alive_[i]);
    std::erase_if(ended_, [this](const std::unique_ptr<Connection>& connection) {
      return end_->queue().retired() >= connection->last_post;
    });
  }

  void check_connection(Connection& connection) {
    if (!connection.status.ok()) {
      end(connection, connection.status.get());
    } else if (failed()) {
      end(connection, connect::diagnose(end_->queue().error(), receive_error(), *connection.control,
                                        connection.peer()));
    } else if (peer_is_gone(connection)) {
      end(connection, connect::peer_is_gone(connection.peer()));
    }
  }

  connect::EventWait events_;
  uint32_t slot_bits_;
  std::unique_ptr<UnreliableEnd> end_;
  channel::ChannelError error_;  // of arrivals
  uint64_t polls_ = 0;
};

// --- the design ---

struct DatagramSendSend : UnreliableSendSend<Transport::kUd> {
  static constexpr ReceiveQueues kReceiveQueues = ReceiveQueues::kShared;
  using Responder = DatagramResponder;
};

}  // namespace verbena::rpc
