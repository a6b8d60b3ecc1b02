// Where the calls come from that --test replay makes: a recording, or the skeleton of a kernel.
#pragma once

#include <memory>

#include "src/bench/experiment/point.h"
#include "src/trace/recording.h"
#include "verbena/status.h"

namespace verbena::bench {

// Names the folder of the recording, for this process and those that it starts.
inline constexpr const char* kRecordingVariable = "VERBENA_RECORDING";
// Names a folder in which each rank leaves how long it took (replay_report.h).
inline constexpr const char* kReplayReportVariable = "VERBENA_TRACE_REPORT";

// Read or made once in a process, however often it is asked for.
Result<std::shared_ptr<const trace::RecordedJob>> replay_job(const Point& point);

// All ranks' memory for it.
uint64_t replay_memory_bytes(const trace::RecordedJob& job);
// The messages that its ranks send, those of collective operations among them.
uint64_t replay_messages(const trace::RecordedJob& job);

}  // namespace verbena::bench
