// What the requesters of all protocols are beside their messages: whose slots are free, who the
// peer is, whether it still lives, and what went wrong.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "src/base/kept_status.h"
#include "src/channel/channel_error.h"
#include "src/connect/event_wait.h"
#include "src/connect/failure.h"
#include "src/connect/peer_watch.h"
#include "src/rpc/design_choice.h"
#include "src/rpc/slot_states.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

class RequesterBase : public Requester {
 public:
  ~RequesterBase() override {
    // The responder may have nothing on its way to this side, whose failure would tell it. After a
    // handshake that failed, the control connection may be used for another one.
    if (connected_ && status_.ok()) control_->hang_up();
  }

  const Status& status() const override { return status_.get(); }
  const ConnectionStatistics& statistics() const override { return statistics_; }
  void close() override {
    if (status_.ok()) fail(connect::connection_closed(peer()));
  }
  uint32_t pending() const override { return slots_.size(); }
  uint32_t request_max_bytes() const override { return request_max_bytes_; }
  DesignChoice design() const override {
    return requester_choice(device_->info(), agreed_, sending_);
  }

 protected:
  RequesterBase(const Device& device, ControlConnection& control, const RequesterOptions& options,
                const DesignAgreement& agreed, uint32_t request_max_bytes,
                uint32_t default_poll_batch)
      : request_max_bytes_(request_max_bytes),
        poll_batch_(options.poll_batch == 0 ? default_poll_batch : options.poll_batch),
        slots_(options.pending),
        control_(&control),
        device_(&device),
        agreed_(agreed),
        sending_{options.inline_bytes, options.signal_interval, options.post_batch} {}

  virtual QueuePair& queue_pair() = 0;

  // The handshake is over: from here on the control connection ends with the connection.
  void set_connected() { connected_ = true; }

  // What a post into a slot that is not free returns.
  PostResult not_free(uint32_t slot) const {
    return slots_[slot] == SlotState::kWaiting ? PostResult::kWouldBlock : PostResult::kFailed;
  }

  // The first failure is the one to tell.
  PostResult fail(Status status) {
    if (status_.ok()) {
      status_ = std::move(status);
      slots_.set_all(SlotState::kFailed);
      // Nothing can be done about a queue pair that cannot even fail.
      static_cast<void>(queue_pair().to_error());
      control_->hang_up();
    }
    return PostResult::kFailed;
  }
  PostResult fail(const channel::ChannelError& sending, const channel::ChannelError& receiving) {
    return fail(connect::diagnose(sending, receiving, *control_, peer()));
  }

  // For what fails: no connection of thousands keeps its peer's name twice.
  std::string peer() const { return "the responder " + control_->peer_name(); }

  // To be called when `watch_` says so.
  void fail_if_peer_is_gone() {
    if (silence_.gone(statistics_.responses, [this] { return control_->peer_closed(); })) {
      fail(connect::peer_is_gone(peer()));
    }
  }

  connect::EventWait events_;  // outlives the queues that report to it
  uint32_t request_max_bytes_;
  uint32_t poll_batch_;
  SlotStates slots_;
  connect::PeerWatch watch_;
  ConnectionStatistics statistics_;

  connect::SilenceCheck silence_;
  ControlConnection* control_;
  KeptStatus status_;

 private:
  bool connected_ = false;
  const Device* device_;
  DesignAgreement agreed_;
  SendingOptions sending_;
};

}  // namespace verbena::rpc
