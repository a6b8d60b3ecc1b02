// The responder of every protocol that is a request channel and a response channel, for one
// connection or many.
//
// A request's way: found in a polled slot of its connection (WRITE), or in the shared inbox of all
// connections (SEND, WRITE_WITH_IMM); the handler writes the response into the slot of the same
// number; the request's slot is cleared; the response goes out; and only then, since nobody waits
// for it, the receive goes back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/base/member_if.h"
#include "src/channel/completion_receiver.h"
#include "src/connect/event_wait.h"
#include "src/rpc/connection_end.h"
#include "src/rpc/design_point.h"
#include "src/rpc/endpoint_memory.h"
#include "src/rpc/negotiation.h"
#include "src/rpc/notification_board.h"
#include "src/rpc/responder_base.h"
#include "src/rpc/responder_control.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

template <typename Design>
inline constexpr bool kUsesInbox =
    Design::RequestChannel::kConsumesReceives&& Design::kReceiveQueues == ReceiveQueues::kShared;

template <typename Design>
struct ChannelConnection : ResponderConnection {
  ChannelConnection(ControlConnection& control_connection, const DesignRequest& agreed)
      : ResponderConnection(control_connection),
        pending(agreed.pending),
        response_max_bytes(agreed.response_max_bytes) {
    if constexpr (kUsesInbox<Design>) parked.reserve(pending);
  }
  // Nothing can be done about a queue pair that cannot even fail.
  void stop() { static_cast<void>(end.queue_pair().to_error()); }

  // Its part of the board.
  [[no_unique_address]] MemberIf<Design::RequestChannel::kNotifies, std::optional<MemoryRegion>>
      notifications;
  ConnectionEnd<typename Design::ResponseChannel, typename Design::RequestChannel,
                /*kSharedReceives=*/kUsesInbox<Design>>
      end;
  uint32_t pending;
  uint32_t response_max_bytes;
  // Requests of the inbox whose responses met a full send queue.
  [[no_unique_address]] MemberIf<kUsesInbox<Design>, std::vector<ibv_wc>> parked;
};

template <typename Design>
class ChannelResponder final : public ResponderBase<ChannelConnection<Design>> {
  static_assert(ChannelPair<Design>);
  using Connection = ChannelConnection<Design>;
  using Base = ResponderBase<Connection>;
  using RequestChannel = typename Design::RequestChannel;
  using ResponseChannel = typename Design::ResponseChannel;
  static constexpr bool kInbox = kUsesInbox<Design>;
  static constexpr bool kBoard = RequestChannel::kNotifies;

 public:
  static Result<std::unique_ptr<ChannelResponder>> create(const Device& device,
                                                          const ProtectionDomain& domain,
                                                          const ResponderOptions& options) {
    VERBENA_RETURN_IF_ERROR(check_responder_options(options));
    VERBENA_RETURN_IF_ERROR(check_device_layout(Design::kProtocol, Design::kLayout, device.info()));
    std::unique_ptr<ChannelResponder> responder(new ChannelResponder(device, domain, options));
    if (RequestChannel::kConsumesReceives && options.blocking) {
      VERBENA_RETURN_IF_ERROR(responder->events_.enable(device));
    }
    if constexpr (kInbox) {
      VERBENA_ASSIGN_OR_RETURN(responder->inbox_,
                               make_inbox(device, domain, options, !RequestChannel::kWritesSlots,
                                          responder->events_.channel()));
    }
    if constexpr (kBoard) {
      VERBENA_ASSIGN_OR_RETURN(responder->board_,
                               NotificationBoard::create(options.max_connections, options.pending));
    }
    return responder;
  }

  ~ChannelResponder() override { this->drop_connections(); }

  Status connect(ControlConnection& control) override {
    VERBENA_ASSIGN_OR_RETURN(
        const DesignRequest agreed,
        accept_design(control,
                      offered_design(Design::kProtocol, Design::kLayout, *device_, options_),
                      options_.handshake_timeout_ns));
    auto connection = std::make_unique<Connection>(control, agreed);
    Result<EndpointMemory> mine = [&]() -> Result<EndpointMemory> {
      VERBENA_ASSIGN_OR_RETURN(connection->number, this->free_number());
      EndOptions end = end_options(options_, agreed);
      end.connection = connection->number;
      if constexpr (kInbox) {
        end.shared_receives = &*inbox_->queue;
        end.shared_completions = &*inbox_->completions;
      } else {
        end.events = events_.channel();
      }
      if constexpr (kBoard) {
        VERBENA_ASSIGN_OR_RETURN(connection->notifications,
                                 board_.offer(*domain_, connection->number, agreed.pending));
        end.shared_notifications = board_.notifications(connection->number);
        end.shared_notifications_rkey = connection->notifications->rkey();
      }
      return connection->end.prepare(*device_, *domain_, end);
    }();
    const Result<EndpointMemory> theirs =
        join(control, connection->end.endpoint(), mine, connection->end.needs(),
             options_.handshake_timeout_ns);
    if (!theirs.ok()) {
      give_up(std::move(connection));
      return theirs.status();
    }
    connection->end.start(*theirs);
    this->add(std::move(connection));
    return Status::ok_status();
  }

  uint32_t poll_with(RequestHandler handler) override { return answer_all(handler); }

  template <typename Handler>
  uint32_t poll(Handler&& handler) {
    return answer_all(handler);
  }

  bool wait(int64_t timeout_ns) override {
    if (events_.channel() == nullptr) return false;
    if constexpr (kInbox) {
      if (!connect::EventWait::arm(inbox_->inbox.completions())) return false;
      if (inbox_->inbox.next() != nullptr) return true;
    } else if constexpr (RequestChannel::kConsumesReceives) {
      for (Connection* connection : alive_) {
        if (!connect::EventWait::arm(connection->end.receiver().completions())) return false;
      }
      for (Connection* connection : alive_) {
        if (connection->end.receiver().has_arrival()) return true;
      }
    }
    events_.sleep_for(timeout_ns);
    watch_.hurry();
    return true;
  }

 private:
  using Base::alive_;
  using Base::connections_;
  using Base::device_;
  using Base::domain_;
  using Base::ended_;
  using Base::options_;
  using Base::watch_;

  ChannelResponder(const Device& device, const ProtectionDomain& domain,
                   const ResponderOptions& options)
      : Base(Design::kProtocol, Design::kLayout, device, domain, options) {}

  // --- messages ---

  template <typename Handler>
  uint32_t answer_all(Handler& handler) {
    uint32_t answered = 0;
    if constexpr (kInbox) {
      answered = answer_inbox(handler);
    } else if constexpr (kBoard) {
      board_.for_each_notified(static_cast<uint32_t>(connections_.size()), [&](uint32_t number) {
        Connection& connection = *connections_[number];
        if (connection.status.ok()) answered += answer_slots(connection, handler);
      });
    } else {
      for (Connection* connection : alive_) answered += answer_slots(*connection, handler);
    }
    if (watch_.due(answered)) [[unlikely]]
      check_peers();
    return answered;
  }

  template <typename Handler>
  uint32_t answer_slots(Connection& connection, Handler& handler) {
    channel::SendQueue& queue = connection.end.sender().queue();
    // A request whose response could not leave stays where it is.
    const uint32_t room = std::min(connection.pending, queue.room());
    const uint32_t answered = connection.end.receiver().poll(
        room, [](uint32_t) { return true; },
        [&](uint32_t slot, const char* payload, uint32_t bytes) {
          answer(connection, slot, payload, bytes, handler);
        });
    queue.flush();
    return answered;
  }

  template <typename Handler>
  uint32_t answer_inbox(Handler& handler) {
    channel::SharedInbox& inbox = inbox_->inbox;
    uint32_t answered = parked_ > 0 ? answer_parked(handler) : 0;
    while (answered < inbox_->receives) {
      const ibv_wc* completion = inbox.next();
      if (completion == nullptr) break;
      const channel::MessageImmediate immediate =
          channel::MessageImmediate::from_completion(*completion);
      Connection* connection = sender_of(*completion, immediate);
      if (connection == nullptr) [[unlikely]] {
        reject(*completion);
        inbox.take();
        continue;
      }
      // A request whose response cannot leave yet waits, and nobody else with it.
      if (!connection->end.sender().queue().has_room()) [[unlikely]] {
        park(*connection, *completion);
        inbox.take_and_keep();
        continue;
      }
      answer_message(*connection, *completion, handler);
      inbox.take();
      ++answered;
    }
    if (options_.post_batch > 1) {
      for (Connection* connection : alive_) connection->end.sender().queue().flush();
    }
    return answered;
  }

  template <typename Handler>
  void answer_message(Connection& connection, const ibv_wc& completion, Handler& handler) {
    const uint32_t slot = channel::MessageImmediate::from_completion(completion).slot;
    const char* payload = RequestChannel::kWritesSlots ? connection.end.incoming().slot(slot)
                                                       : inbox_->inbox.buffer(completion);
    answer(connection, slot, payload, completion.byte_len, handler);
  }

  // Keeps a request of the inbox for later. Who has more requests on the way than were agreed never
  // takes the responses.
  void park(Connection& connection, const ibv_wc& completion) {
    if (connection.parked.size() == connection.pending) [[unlikely]] {
      inbox_->inbox.give_back(completion);
      connection.status = too_many_requests(connection.pending, connection.peer());
      watch_.hurry();
      return;
    }
    connection.parked.push_back(completion);
    ++parked_;
  }

  template <typename Handler>
  uint32_t answer_parked(Handler& handler) {
    uint32_t answered = 0;
    for (Connection* connection : alive_) {
      channel::SendQueue& queue = connection->end.sender().queue();
      while (!connection->parked.empty() && connection->status.ok() && queue.has_room()) {
        const ibv_wc completion = connection->parked.front();
        connection->parked.erase(connection->parked.begin());
        --parked_;
        answer_message(*connection, completion, handler);
        inbox_->inbox.give_back(completion);
        ++answered;
      }
    }
    return answered;
  }

  template <typename Handler>
  void answer(Connection& connection, uint32_t slot, const char* payload, uint32_t bytes,
              Handler& handler) {
    auto& sender = connection.end.sender();
    const std::span<char> response(sender.payload(slot), connection.response_max_bytes);
    const uint32_t response_bytes =
        handler(Request{connection.number, slot, std::span<const char>(payload, bytes)}, response);
    if (response_bytes > response.size()) [[unlikely]] {
      connection.status =
          bad_answer(response_bytes, connection.response_max_bytes, connection.peer());
      watch_.hurry();  // to end it; not from inside the loop over connections
      return;
    }
    // Before the response: it tells the requester that the slot is free.
    if constexpr (!kInbox) connection.end.receiver().release(slot);
    sender.post(slot, response_bytes);
    if constexpr (!kInbox) connection.end.receiver().after_post(slot);
    ConnectionStatistics& statistics = connection.statistics;
    ++statistics.requests;
    ++statistics.responses;
    statistics.request_bytes += bytes;
    statistics.response_bytes += response_bytes;
  }

  // The connection that a completion of the inbox belongs to; null if it is an error, from a
  // connection that has ended, or breaks the protocol. The immediate is the peer's word, the queue
  // pair number is not.
  Connection* sender_of(const ibv_wc& completion, const channel::MessageImmediate& immediate) {
    if (completion.status != IBV_WC_SUCCESS || immediate.connection >= connections_.size())
      return nullptr;
    Connection* connection = connections_[immediate.connection].get();
    if (!connection->status.ok() || immediate.slot >= connection->pending ||
        completion.qp_num != connection->end.queue_pair().number() ||
        request_violation(completion, connection->end.incoming().shape) != nullptr) {
      return nullptr;
    }
    return connection;
  }

  static const char* request_violation(const ibv_wc& completion, const channel::SlotShape& shape) {
    return channel::receive_violation(
        completion, RequestChannel::kWritesSlots ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
        shape.capacity_bytes);
  }

  // --- beside the messages ---

  void reject(const ibv_wc& completion) {
    for (Connection* connection : alive_) {
      if (connection->end.queue_pair().number() != completion.qp_num) continue;
      if (!connection->status.ok()) {
        end_connection(*connection, connection->status.get());
        return;
      }
      const char* violation = request_violation(completion, connection->end.incoming().shape);
      if (violation == nullptr) violation = "its message names a slot that it does not have";
      const auto error = completion.status != IBV_WC_SUCCESS
                             ? channel::ChannelError::completed_with(completion.status)
                             : channel::ChannelError::peer_violated(violation);
      end_connection(*connection, connect::diagnose(connection->end.sender().queue().error(), error,
                                                    *connection->control, connection->peer()));
      return;
    }
    // A late message of a connection that has ended.
  }

  void check_peers() {
    // Backwards: ending one takes it out of the list.
    for (size_t i = alive_.size(); i-- > 0;) check_connection(*alive_[i]);
    if constexpr (kInbox) {
      if (inbox_->inbox.next() != nullptr) return;
    }
    ended_.clear();
  }

  void check_connection(Connection& connection) {
    channel::SendQueue& queue = connection.end.sender().queue();
    queue.reap();
    const channel::ChannelError receiving = receive_error(connection);
    if (!connection.status.ok()) {
      end_connection(connection, connection.status.get());
    } else if (queue.error() || receiving) {
      end_connection(connection, connect::diagnose(queue.error(), receiving, *connection.control,
                                                   connection.peer()));
    } else if (this->peer_is_gone(connection)) {
      end_connection(connection, connect::peer_is_gone(connection.peer()));
    }
  }

  channel::ChannelError receive_error(Connection& connection) {
    if constexpr (kInbox) {
      return inbox_->inbox.error();
    } else {
      return connection.end.receiver().error();
    }
  }

  // After a handshake that failed. A requester that broke it off may have sent before: shared
  // receives that its requests took are given back by polls, as those of ended connections are.
  void give_up(std::unique_ptr<Connection> connection) {
    if constexpr (kInbox) {
      if (connection->end.endpoint() == nullptr) return;
      connection->stop();
      if (inbox_->inbox.next() != nullptr) ended_.push_back(std::move(connection));
    }
  }

  void end_connection(Connection& connection, Status why) {
    if constexpr (kInbox) {
      for (const ibv_wc& completion : connection.parked) inbox_->inbox.give_back(completion);
      parked_ -= static_cast<uint32_t>(connection.parked.size());
      connection.parked.clear();
    }
    this->end(connection, std::move(why));
  }

  connect::EventWait events_;
  NotificationBoard board_;
  std::unique_ptr<RequestInbox> inbox_;
  uint32_t parked_ = 0;  // of all connections
};

}  // namespace verbena::rpc
