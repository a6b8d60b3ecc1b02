// Makes the connections of a messenger: listens for peers, and connects to those it is asked for,
// in two threads that do nothing else. Control path, except has_news().
//
// Two sides that want each other at once would make two connections: the one that the lower address
// asked for stays. The listening side that has asked for it itself refuses the other, whose own
// listening side gets the first. Until then the other asks now and then whether that is still to
// come, however long it takes, and meanwhile serves others.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "src/base/runtime.h"
#include "src/connect/endpoint.h"
#include "src/message/sleep_place.h"
#include "verbena/connection.h"
#include "verbena/data_path.h"
#include "verbena/device.h"
#include "verbena/message.h"
#include "verbena/status.h"

namespace verbena::message {

// What connections are made of, the same for all.
struct ConnectionPlan {
  const Device* device = nullptr;
  const ProtectionDomain* domain = nullptr;
  SleepPlace* place = nullptr;  // where the messenger may sleep
  connect::EndpointPlan endpoint;
  uint64_t receive_bytes = 0;  // of the endpoint's arena: for receives
};

// A connection, or why there is none.
struct Joined {
  static constexpr uint32_t kNoNumber = ~0u;

  MessengerAddress peer;
  Status status;
  // It failed, and does not matter: another attempt decides, of the peer or of this side.
  bool superseded = false;
  std::unique_ptr<ControlConnection> control;
  std::optional<connect::Endpoint> endpoint;
  uint32_t number = kNoNumber;  // of the connection here, also of one that failed
  uint32_t their_number = 0;    // and at the peer: the immediate of messages to it
  // Whether the arena has room for a connection's receives. Else those of one that has ended serve.
  bool brings_receives = true;
};

// Why a messenger with `max_peers` peers takes no further one, and what to do.
Status too_many_peers(uint32_t max_peers);

class Connector {
 public:
  static Result<std::unique_ptr<Connector>> start(const ConnectionPlan& plan,
                                                  const JobSecret& secret,
                                                  const MessengerOptions& options);
  // Waits until its threads have noticed: some 50 ms, or a second where a peer's system has taken a
  // connection and the peer does not answer.
  ~Connector();

  const MessengerAddress& address() const { return address_; }
  // A connection to a peer that has none. Its outcome is taken later.
  void request(const MessengerAddress& peer);
  bool has_news() const { return poll_counter(&news_, taken_) != taken_; }
  // Needs has_news().
  Joined take();
  // A connection, or what failed to become one, is over, and nothing refers to it. Another thread
  // destroys it; then its number can be another one's, and with `receives` the receives that were
  // posted for it, too.
  void end(Joined joined, bool receives);
  // Whether the queue pair is that of a connection that was not taken yet.
  bool is_joining(uint32_t queue_pair_number);

 private:
  enum class State : uint8_t { kIdle, kAsked, kAccepting, kConnected };
  struct Progress {
    State state = State::kIdle;
    bool requested = false;  // and not over: in asked_, or on its way
  };
  struct Request {
    MessengerAddress peer;
    uint64_t deadline_ns = 0;  // 0: of the first attempt, which was not made
    uint32_t attempts = 0;
  };

  Connector(const ConnectionPlan& plan, const JobSecret& secret, const MessengerOptions& options,
            ControlListener listener);

  void run_acceptor();
  void run_requester();
  void accept_from(ControlConnection control);
  // The next request that is due. False: the messenger is closed.
  bool next_request(Request* request);
  void connect_to(Request request);
  // Later, behind others.
  void ask_again(Request request);
  Status connect_once(Joined& joined, uint64_t deadline_ns, uint8_t* verdict);
  // The rest of both: makes the endpoint and joins it with the peer's.
  Status join(Joined& joined);
  // What the acceptor answers to a peer that connects.
  uint8_t verdict_on(const MessengerAddress& peer);
  // What becomes of the peer by the outcome of an attempt, and of the outcome by what came before.
  void conclude(Joined& joined, bool accepted);
  struct Ended {
    Joined joined;
    bool receives = false;
  };
  Status take_number(Joined& joined);
  void destroy_ended();
  void tell(Joined joined);
  bool stopping();
  // What waits for the peer, unless the messenger is closed.
  Result<std::vector<std::byte>> receive_from(ControlConnection& control);

  const ConnectionPlan plan_;
  const JobSecret secret_;
  const MessengerOptions options_;
  ControlListener listener_;
  MessengerAddress address_;

  std::mutex mutex_;  // guards what follows
  Condition changed_;
  bool stop_ = false;
  std::map<MessengerAddress, Progress> peers_;
  std::multimap<uint64_t, Request> asked_;  // by the time before which they are not due
  std::deque<Joined> outcomes_;
  std::vector<Ended> ended_;
  uint32_t next_number_ = 0;            // that was never in use
  std::vector<uint32_t> free_numbers_;  // of those before
  uint32_t spare_receives_ = 0;         // those of so many connections that have ended
  std::vector<uint32_t> joining_;       // queue pair numbers of what was not taken

  uint64_t news_ = 0;   // outcomes so far
  uint64_t taken_ = 0;  // of the messenger's thread

  Thread acceptor_;
  Thread requester_;
};

}  // namespace verbena::message
