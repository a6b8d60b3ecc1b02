// Where a messenger's thread sleeps: one descriptor that becomes readable when something may have
// come. Control path; in a simulation there are no descriptors, and it waits in virtual time.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "src/base/file_descriptor.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::message {

class SleepPlace {
 public:
  static Result<std::unique_ptr<SleepPlace>> create(const Device& device);

  // Where the completion queue sends its events.
  const CompletionChannel& channel() const { return channel_; }
  // -1 in a simulation.
  int descriptor() const { return all_.get(); }

  // Another thread of the process has something for the sleeper.
  void wake();
  // Forgets what came so far. Then look for it, and only then sleep.
  void begin();
  // The descriptor becomes readable after `max_sleep_ns`, whatever comes: peers are to be served.
  void set_limit(uint64_t max_sleep_ns);
  // Sleeps at most so long.
  void sleep_for(uint64_t sleep_ns);

 private:
  explicit SleepPlace(CompletionChannel channel) : channel_(std::move(channel)) {}
  Status open();

  CompletionChannel channel_;
  FileDescriptor all_;    // of the channel and the two below
  FileDescriptor news_;   // of other threads
  FileDescriptor timer_;  // set once at a time
  bool woken_ = false;    // in a simulation, which is one thread
};

}  // namespace verbena::message
