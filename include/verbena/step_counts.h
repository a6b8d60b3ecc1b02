// Steps of messages, counted: the same on every device, whatever each of them takes there.
#pragma once

namespace verbena {

// What a side does for a message, or for a request and its response, as a mean.
struct StepCounts {
  double work_requests = 0;  // built and posted for the send queue
  double doorbells = 0;      // lists of them
  double receives = 0;       // posted
  double completions = 0;    // taken from a completion queue
  double polled_lines = 0;   // cache lines that a poll touches which finds the message
  double cleared_bytes = 0;  // of marks and messages, after use
  double device_reads = 0;   // by the RNIC: payloads, and receives that messages consume

  StepCounts& operator+=(const StepCounts& other) {
    work_requests += other.work_requests;
    doorbells += other.doorbells;
    receives += other.receives;
    completions += other.completions;
    polled_lines += other.polled_lines;
    cleared_bytes += other.cleared_bytes;
    device_reads += other.device_reads;
    return *this;
  }
};

}  // namespace verbena
