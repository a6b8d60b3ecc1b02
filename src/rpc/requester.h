// The requester of every protocol that is a request channel and a response channel.
//
// A request's way: the user fills the slot; try_post() makes room for the response (release),
// sends, and gives the receive of the slot's last response back. poll() finds the response and
// hands it out in place.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "src/rpc/connection_end.h"
#include "src/rpc/design_point.h"
#include "src/rpc/endpoint_memory.h"
#include "src/rpc/negotiation.h"
#include "src/rpc/requester_base.h"
#include "src/rpc/requester_control.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

template <typename Design>
class ChannelRequester final : public RequesterBase {
  static_assert(ChannelPair<Design>);
  using RequestChannel = typename Design::RequestChannel;
  using ResponseChannel = typename Design::ResponseChannel;

 public:
  // The handshake and everything that it leads to.
  static Result<std::unique_ptr<ChannelRequester>> create(const Device& device,
                                                          const ProtectionDomain& domain,
                                                          ControlConnection& control,
                                                          const RequesterOptions& options) {
    VERBENA_ASSIGN_OR_RETURN(
        const DesignAgreement agreed,
        request_design(Design::kProtocol, Design::kLayout, device, control, options));
    return connect(device, domain, control, options, agreed);
  }

  // The part behind request_design().
  static Result<std::unique_ptr<ChannelRequester>> connect(const Device& device,
                                                           const ProtectionDomain& domain,
                                                           ControlConnection& control,
                                                           const RequesterOptions& options,
                                                           const DesignAgreement& agreed) {
    std::unique_ptr<ChannelRequester> requester(
        new ChannelRequester(device, control, options, agreed));
    End& end = requester->end_;
    Result<EndpointMemory> mine = [&]() -> Result<EndpointMemory> {
      VERBENA_RETURN_IF_ERROR(check_layout(Design::kProtocol, Design::kLayout, agreed));
      EndOptions ends = end_options(options);
      if (ResponseChannel::kConsumesReceives && options.blocking) {
        VERBENA_RETURN_IF_ERROR(requester->events_.enable(device));
        ends.events = requester->events_.channel();
      }
      return end.prepare(device, domain, ends);
    }();
    VERBENA_ASSIGN_OR_RETURN(
        const EndpointMemory theirs,
        join(control, end.endpoint(), mine, end.needs(), options.handshake_timeout_ns));
    end.start(theirs);
    requester->set_connected();
    return requester;
  }

  char* request_buffer(uint32_t slot) override { return end_.sender().payload(slot); }

  PostResult try_post(uint32_t slot, uint32_t bytes) override {
    if (slot >= slots_.size() || bytes > request_max_bytes_) [[unlikely]] {
      return fail(misused_post(slot, bytes, pending(), request_max_bytes_));
    }
    if (slots_[slot] != SlotState::kFree) [[unlikely]]
      return not_free(slot);
    auto& sender = end_.sender();
    auto& receiver = end_.receiver();
    if (!sender.queue().has_room()) [[unlikely]] {
      ++statistics_.would_block;
      return no_room();
    }
    // First: once the request is out, the response may come.
    receiver.release(slot);
    slots_[slot] = SlotState::kWaiting;
    if (!receive_slack_) receiver.after_post(slot);
    if (!sender.post(slot, bytes)) [[unlikely]]
      return no_room();
    // Last: with slack, a receive for the response is posted already.
    if (receive_slack_) receiver.after_post(slot);
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
    if constexpr (ResponseChannel::kConsumesReceives) {
      if (events_.channel() == nullptr) return false;
      end_.sender().queue().flush();
      if (!connect::EventWait::arm(end_.receiver().completions())) return false;
      if (!end_.receiver().has_arrival()) events_.sleep_for(timeout_ns);
      watch_.hurry();
      return true;
    }
    return false;
  }

  MarkLayout mark_layout() const override { return Design::kLayout; }
  uint32_t response_max_bytes() const override { return response_max_bytes_; }

 private:
  using End = ConnectionEnd<RequestChannel, ResponseChannel, /*kSharedReceives=*/false>;

  ChannelRequester(const Device& device, ControlConnection& control,
                   const RequesterOptions& options, const DesignAgreement& agreed)
      : RequesterBase(device, control, options, agreed, options.request_max_bytes, options.pending),
        response_max_bytes_(options.response_max_bytes),
        receive_slack_(options.receive_slack) {}

  QueuePair& queue_pair() override { return end_.queue_pair(); }

  template <typename OnResponse>
  uint32_t poll_at_most(uint32_t limit, OnResponse&& on_response) {
    end_.sender().queue().flush();
    const uint32_t found = end_.receiver().poll(
        limit, [this](uint32_t slot) { return slots_[slot] == SlotState::kWaiting; },
        [&](uint32_t slot, const char* payload, uint32_t bytes) {
          slots_[slot] = SlotState::kFree;
          ++statistics_.responses;
          statistics_.response_bytes += bytes;
          on_response(slot, std::span<const char>(payload, bytes));
        });
    if (watch_.due(found)) [[unlikely]]
      check_peer();
    return found;
  }

  PostResult no_room() { return fail_if_broken() ? PostResult::kFailed : PostResult::kWouldBlock; }

  bool fail_if_broken() {
    const channel::ChannelError& sending = end_.sender().queue().error();
    const channel::ChannelError& receiving = end_.receiver().error();
    if (!sending && !receiving) return false;
    fail(sending, receiving);
    return true;
  }

  void check_peer() {
    if (!status_.ok()) return;
    end_.sender().queue().reap();
    if (fail_if_broken()) return;
    fail_if_peer_is_gone();
  }

  End end_;
  uint32_t response_max_bytes_;
  bool receive_slack_;
};

}  // namespace verbena::rpc
