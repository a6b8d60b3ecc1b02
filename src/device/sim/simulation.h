// A cluster in virtual time: nodes with threads, whose devices are simulated RNICs.
//
//   Simulation simulation({.seed = 7});
//   Node& node = simulation.add_node(profile);
//   { OnNode here(simulation, node); device = Device::open("sim:connectx5-edr"); }
//   simulation.run_until([&] { return done; });
//
// While a Simulation exists, the thread of the system that made it lives in virtual time
// (virtual_time.h). Threads that are started there become fibers of the current node. A fiber runs
// without time passing; it is charged the CPU time of what it does, by the device and for what the
// data path counts (verbena/data_path.h), which puts its own clock ahead. Before it sees anything
// that others may have changed, everything that happens until then is made to happen (catch_up()),
// so all see each other in order.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/virtual_time.h"
#include "src/device/sim/event_queue.h"
#include "src/device/sim/host_cores.h"
#include "src/device/sim/switched_stack.h"
#include "verbena/data_path.h"

namespace verbena::sim {

class Node;
class Fabric;
class Recorder;
struct Profile;
struct FaultRates;

// Messages that came with receives, whose completions a poll has found.
struct Received {
  uint32_t messages = 0;
  uint32_t lines = 0;  // with bytes
};

// A thread of a simulated node.
struct Fiber {
  enum class State : uint8_t { kRunning, kReady, kPolling, kWaiting, kStanding, kEnded };

  boost::context::fiber context;
  SwitchedStack stack;
  Node* node = nullptr;
  uint32_t number = 0;  // on its node
  uint32_t socket = 0;  // where it runs
  std::string name;
  std::function<void()> body;
  State state = State::kReady;
  Time local = 0;  // its own clock, at or ahead of the simulation's
  Time busy = 0;   // CPU time it was charged
  Time wake_at = kNever;
  uint64_t generation = 0;      // of its wake-up: earlier ones mean nothing
  Time poll_again_at = kNever;  // though nothing came
  bool timed = false;           // an event looks at that time, or earlier
  Time wait_ends = kNever;      // though nobody woke it
  Time wait_timer = kNever;     // when an event looks at that, or earlier
  bool timed_out = false;       // its wait
  bool called = false;          // something came that its polling loop has perhaps not seen
  const void* place = nullptr;  // where it waits
  // Writes into its memory that it has not come across: while there are any, its polling loop goes
  // on, since one round need not poll everywhere.
  uint64_t unseen = 0;
  // Sockets of what an RNIC wrote last for this thread: of the memory, and of the RNIC.
  uint32_t written_memory = 0;
  uint32_t written_by = 0;
  // By its last poll of a completion queue; charged if it reads them, which its counts tell.
  Received received;
  // Of the port whose RNIC wrote them.
  uint32_t receives_at = 0;
  // Of the memory that its last work request named, which it also copies from and to; before that,
  // where it runs.
  uint32_t buffers = 0;
  uint64_t far_publications = 0;  // Node::publications of other sockets that it has come across
  // What it did on the data path, while another thread runs; and what of it was charged.
  internal::DataPathCounters counters;
  internal::DataPathCounters charged;
  Random dice{0};  // for what its work takes
  uint32_t rounds = 0;
  CorePlace core;  // where all nodes share a machine
};

class Simulation final : public VirtualTime {
 public:
  struct Options {
    uint64_t seed = 1;
    // Instrumented code needs more.
    size_t stack_bytes =
        VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 1 << 20 : 256 << 10;
    // Whether every byte moves. Otherwise the inner packets of long messages arrive without their
    // bytes, for programs that do not look at them: that spares time and memory, and nothing else
    // changes.
    bool copy_all = true;
  };

  explicit Simulation(const Options& options);
  // All threads of its nodes must have ended, unless it is stuck: then they are given up.
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // The one that the calling thread of the system is in; null outside.
  static Simulation* current();

  Node& add_node(const Profile& profile);
  size_t nodes() const { return nodes_.size(); }
  Node& node(size_t number) { return *nodes_[number]; }
  Fabric& fabric() { return *fabric_; }

  // Lets things happen until `done`, which is asked whenever a thread has told others something
  // (wake_all_at()) or ended. False: nothing will ever happen any more, or it is `deadline_ns`
  // now.
  bool run_until(const std::function<bool()>& done, uint64_t deadline_ns = UINT64_MAX);

  // From now on tells `recorder` what happens; null: nobody.
  void record(Recorder* recorder) { recorder_ = recorder; }
  Recorder* recorder() const { return recorder_; }

  // --- for nodes and devices ---

  Time now() const { return now_; }
  void at(Time when, Event::Act act, void* object, uint64_t argument = 0) {
    VERBENA_DEBUG_ASSERT(when >= now_);
    events_.push(when, act, object, argument);
  }
  const Options& options() const { return options_; }
  uint64_t events() const { return events_done_; }
  size_t pending_events() const { return events_.size(); }
  // Of when events came and what note() was told, in its order: two runs that are the same have the
  // same.
  uint64_t digest() const { return digest_; }
  void note(uint64_t value) { digest_ = (digest_ ^ value) * 0x100000001b3; }
  // The thread that runs now; null outside of all.
  Fiber* running() const { return running_; }
  // Where Device::open() and start_thread() take effect.
  Node* here() const { return running_ != nullptr ? running_->node : here_; }

  // Charges the running thread CPU time, beside what it did on the data path; nothing outside of
  // all.
  void charge(Time cpu);
  // Makes everything happen that comes before the running thread's clock.
  void catch_up();
  // The same where it is enough not to fall far behind: what a thread sees may be older than its
  // clock by this much.
  void keep_up() {
    if (running_ != nullptr && running_->local > now_ + kMostBehind) catch_up();
  }
  // The running thread's clock; the simulation's outside of all.
  Time local() const { return running_ != nullptr ? running_->local : now_; }
  // The running thread waits for a resource of its node until then.
  void advance_to(Time when);
  // The same until go_on() for it, of which nobody knows yet when that will be.
  void stand_still();
  void go_on(Fiber& fiber) { schedule(fiber, now_); }
  // The fiber, which does not run, has a core then.
  void resume_at(Fiber& fiber, Time when) { schedule(fiber, when); }
  // The fiber's node has crashed. It leaves its core to others, now or when it stops to run.
  void give_up(Fiber& fiber) {
    if (cores_ != nullptr && &fiber != running_) cores_->forget(fiber);
  }
  // The fiber's polling loop polls again at `when`, if it waits.
  void wake(Fiber& fiber, Time when);
  // Lets all that wait look again.
  void wake_all_waiting();
  // Memory is no longer registered: what was said of where it lies is forgotten.
  void forget_place(const void* memory, size_t bytes);

  // --- VirtualTime ---

  uint64_t now_ns() override;
  uint64_t cycles() override;
  void sleep_ns(uint64_t duration_ns) override;
  void idle(uint64_t due_ns) override;
  void wake_pollers() override;
  bool wait_at(const void* place, uint64_t deadline_ns) override;
  void wake_waiting_at(const void* place) override;
  void wake_all_at(const void* place) override;
  void* start_thread(const std::string& name, std::function<void()> body) override;
  void join_thread(void* thread) override;
  uint64_t random() override { return random_.next(); }
  std::shared_ptr<const bool> taken_for_dead() override;
  uint32_t sockets() override;
  int socket_of_device(const void* context) override;
  void run_on_socket(uint32_t socket) override;
  void place_on_socket(const void* memory, size_t bytes, uint32_t socket) override;
  int socket_of_memory(const void* memory, size_t bytes) override;
  void message_taken(uint64_t posted_ns, uint64_t taken_ns, const void* request,
                     const void* response) override;

 private:
  friend class OnNode;

  static constexpr Time kMostBehind = 100 * kPsPerNs;

  // A word that several threads change, and the core whose cache has its line. Each counts as a
  // line of its own: whether two words share one may depend on this process's memory.
  struct SharedWord {
    const Fiber* owner = nullptr;
    Time free_at = 0;  // all who came before have changed it
  };
  struct Place {
    uintptr_t end;
    uint32_t socket;
  };

  static void resume_event(void* fiber, uint64_t generation);
  static void poll_again_event(void* fiber, uint64_t);
  static void wait_ends_event(void* fiber, uint64_t at);
  void start_wait_timer(Fiber& fiber);
  static void take_line(const void* word);
  // What a line takes from core to core: the word that `fiber` consumes, or changes.
  Time hand_over_time(Fiber& fiber, uint64_t consumed_words) const;
  void resume(Fiber& fiber);
  // Leaves the running fiber until it is resumed.
  void leave(Fiber::State state);
  // Charges what the data path has counted since the last time (verbena/data_path.h).
  void charge_data_path(Fiber& fiber, uint64_t least_polls = 0);
  // What work takes on this thread that takes so long alone on average.
  Time taken(Fiber& fiber, Time alone) const;
  void schedule(Fiber& fiber, Time when);
  bool step(Time limit);

  Options options_;
  Random random_;
  EventQueue events_;
  Time now_ = 0;
  uint64_t events_done_ = 0;
  uint64_t digest_ = 0xcbf29ce484222325;  // FNV-1a, a word at a time
  bool attention_ = false;
  Recorder* recorder_ = nullptr;
  Fiber* running_ = nullptr;
  internal::DataPathCounters main_counters_;  // of who runs the simulation
  Node* here_ = nullptr;
  boost::context::fiber main_;
  SwitchedStack main_stack_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<HostCores> cores_;  // null: each node has its own
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::unordered_map<const void*, std::vector<Fiber*>> waiting_;  // by place
  std::unordered_map<const void*, SharedWord> shared_words_;
  std::map<uintptr_t, Place> places_;  // by where the memory begins
};

// While it exists, what the calling code does outside of all threads is done on this node.
class OnNode {
 public:
  OnNode(Simulation& simulation, Node& node) : simulation_(simulation), before_(simulation.here_) {
    simulation.here_ = &node;
  }
  ~OnNode() { simulation_.here_ = before_; }
  OnNode(const OnNode&) = delete;
  OnNode& operator=(const OnNode&) = delete;

 private:
  Simulation& simulation_;
  Node* before_;
};

}  // namespace verbena::sim
