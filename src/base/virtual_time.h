// What takes the machine's place while a thread runs in a simulation: its clock, its waits, its
// threads and its random numbers. runtime.h asks here first; device/sim implements it.
//
// A simulation and all its threads (fibers) run on one thread of the system, and other simulations
// may run on others, so what is current belongs to the thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace verbena {

class VirtualTime {
 public:
  // Of the calling thread of the system; null on a real machine.
  static VirtualTime* current() { return current_; }

  virtual uint64_t now_ns() = 0;
  // The CPU cycles that the running thread has used, in steps of what the simulation charges.
  virtual uint64_t cycles() = 0;
  virtual void sleep_ns(uint64_t duration_ns) = 0;
  // A polling loop found nothing: returns when a device wrote what this thread may poll, or another
  // thread handed something over, or somebody woke the pollers, or at `due_ns`.
  virtual void idle(uint64_t due_ns) = 0;
  // Lets every polling loop poll again: something changed that no device wrote.
  virtual void wake_pollers() = 0;

  // Threads waiting for each other off the data path. False: `deadline_ns` came first.
  virtual bool wait_at(const void* place, uint64_t deadline_ns) = 0;
  virtual void wake_waiting_at(const void* place) = 0;
  // The same, and who runs the simulation looks whether what it waits for has come.
  virtual void wake_all_at(const void* place) = 0;

  virtual void* start_thread(const std::string& name, std::function<void()> body) = 0;
  virtual void join_thread(void* thread) = 0;

  virtual uint64_t random() = 0;

  // How long a node that has crashed may be silent before others take it for dead: as long as
  // control connections let a host be (control/tcp_socket.h).
  static constexpr uint64_t kSilenceLimitNs = 5'000'000'000;
  // Turns true when others take the node that runs for dead; all that wait wake then. Null: no node
  // runs.
  virtual std::shared_ptr<const bool> taken_for_dead() = 0;

  // --- sockets of the node that runs (verbena/sockets.h) ---
  static constexpr uint32_t kMostSockets = 64;
  virtual uint32_t sockets() = 0;
  // To which a device of the simulation is attached; -1: it is none.
  virtual int socket_of_device(const void* context) = 0;
  // Where the running thread goes on.
  virtual void run_on_socket(uint32_t socket) = 0;
  // Says where memory lies that is registered from now on, until its registration ends.
  virtual void place_on_socket(const void* memory, size_t bytes, uint32_t socket) = 0;
  // As that said; -1: nobody did.
  virtual int socket_of_memory(const void* memory, size_t bytes) = 0;

  // The running thread has just taken the response to a request that it posted: when, by now_ns(),
  // and where both lie. For who asks where a message's time goes; nothing else comes of it.
  virtual void message_taken(uint64_t /*posted_ns*/, uint64_t /*taken_ns*/, const void* /*request*/,
                             const void* /*response*/) {}

  // What the control connections of the simulation keep; theirs alone.
  std::shared_ptr<void>& control_network() { return control_network_; }

 protected:
  VirtualTime() = default;
  ~VirtualTime() = default;
  static void set_current(VirtualTime* time) { current_ = time; }

 private:
  std::shared_ptr<void> control_network_;
#if defined(__GNUC__)
  __attribute__((tls_model("initial-exec")))
#endif
  // NOLINTNEXTLINE(readability-identifier-naming): private, whatever clang-tidy 14 takes it for
  static inline constinit thread_local VirtualTime* current_ = nullptr;
};

}  // namespace verbena
