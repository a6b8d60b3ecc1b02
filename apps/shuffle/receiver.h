// A receiver: a lane for each sender. Control path: receiver.cc; data path: receiver_datapath.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shuffle/layout.h"
#include "shuffle/peer_check.h"
#include "shuffle/peer_messages.h"
#include "verbena/apps/shuffle.h"
#include "verbena/clock.h"

namespace verbena::shuffle_app {

class Receiver final : public ShuffleReceiver {
 public:
  static Result<std::unique_ptr<ShuffleReceiver>> expose(const Device& device,
                                                         const ProtectionDomain& domain,
                                                         const ShuffleReceiverOptions& options);
  ~Receiver() override;

  Status accept(ControlConnection control) override;
  Status accept_all(ControlListener& listener, int64_t timeout_ns) override;

  Result<ShuffleSpan> next() override;
  Result<ShuffleSpan> wait_next() override;
  void release(const ShuffleSpan& span) override;
  bool finished() const override { return finished_; }

  const Status& status() const override { return status_; }
  const ShuffleReceiverOptions& options() const override { return options_; }
  uint32_t whole_record_bytes() const override { return shape_.whole_bytes(); }
  ShuffleCount received(uint32_t sender) const override { return lanes_[sender].received; }
  ShuffleCount received() const override;
  uint64_t held_bytes(uint32_t sender) const override;

  // Ends the connections without a word, as a crash does.
  void die_for_test() {
    for (Lane& lane : lanes_) {
      if (lane.control != nullptr) lane.control->hang_up();
    }
  }

 private:
  struct Lane {
    std::unique_ptr<ControlConnection> control;
    std::string name;
    bool left = false;  // it said that it has finished
    const uint64_t* announced = nullptr;
    Released* released = nullptr;
    const char* ring_of_lengths = nullptr;
    const char* ring_of_records = nullptr;
    // What was announced and found in order, by count; and the lengths of these, by their place in
    // the ring: a sender cannot change them any more.
    uint64_t known_entries = 0;
    std::vector<uint32_t> lengths;
    // Behind what was handed out.
    StreamEnd handed_out;
    uint64_t released_entries = 0;
    uint64_t released_position = 0;
    ShuffleCount received;
  };

  explicit Receiver(const ShuffleReceiverOptions& options) : options_(options) {}
  Status prepare(const Device& device, const ProtectionDomain& domain);

  // --- data path ---

  // Takes what was announced since the last time. False: the lane is broken.
  bool learn(Lane& lane);
  // The next span of a lane; empty if there is none.
  ShuffleSpan take(uint32_t number);
  ShuffleSpan take_records(Lane& lane, uint32_t number);
  ShuffleSpan take_array(Lane& lane, uint32_t number);
  // The same of all lanes, in turn.
  ShuffleSpan take_any();

  // --- rare ---

  Status admit(const Hello& hello, const std::string& peer);
  std::vector<uint32_t> missing() const;
  // Looks after those that have not finished. False: one has died, and status_ says which.
  bool check_senders();
  void refuse_lane(const Lane& lane, const std::string& what);
  bool check_sums();
  void refuse_sums();
  // The first failure is the one to tell; `root` is told to all senders.
  void fail(const Status& status, const std::string& root);
  void end_connections(const Goodbye& goodbye);

  const ShuffleReceiverOptions options_;
  LaneShape shape_;
  std::vector<Lane> lanes_;
  uint32_t accepted_ = 0;
  const Sums* sums_ = nullptr;
  uint32_t turn_ = 0;   // whose lane is polled next
  uint64_t ended_ = 0;  // senders, as was found last
  bool finished_ = false;
  Status status_;
  PeerCheck check_;
  PollingBackoff backoff_;
  std::unique_ptr<ExposedRegion> region_;  // before the connections
};

}  // namespace verbena::shuffle_app
