#include "src/bench/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "src/base/runtime.h"
#include "src/base/wire.h"
#include "src/bench/interrupt.h"

namespace verbena::bench {

namespace {

constexpr uint16_t kVersion = 1;
constexpr size_t kMaxCauseBytes = 4096;
// How often a wait looks whether the user pressed Ctrl-C.
constexpr int64_t kInterruptLookNs = 50'000'000;

Status check(const Message& message) {
  const auto wrong = [](const char* what) {
    return Status(
        StatusCode::kProtocolViolation,
        fmt::format("the peer's {} is impossible; do both sides run the same release?", what));
  };
  const Point& point = message.setup.point;
  if (message.kind == MessageKind::kSetup) {
    if (point.protocol > Protocol::kRead) return wrong("protocol");
    if (point.layout > kLastMarkLayout) return wrong("mark layout");
    if (point.request_bytes > kMaxMessageBytes || point.response_bytes > kMaxMessageBytes) {
      return wrong("message size");
    }
    if (point.pending < 1 || point.pending > kMaxPending)
      return wrong("number of pending requests");
  }
  if (message.phase.kind > PhaseKind::kTimed) return wrong("phase");
  if (message.report.cost && message.report.cost->unit > CpuUnit::kInstructions) {
    return wrong("unit of CPU cost");
  }
  if (message.code == StatusCode::kOk || message.code > StatusCode::kInternal) {
    return wrong("status code");
  }
  return Status::ok_status();
}

}  // namespace

Status send_message(ControlConnection& control, const Message& message) {
  WireWriter writer;
  writer.u16(kVersion);
  writer.u8(static_cast<uint8_t>(message.kind));
  switch (message.kind) {
    case MessageKind::kSetup: {
      const Point& point = message.setup.point;
      writer.u8(static_cast<uint8_t>(point.protocol));
      writer.u8(static_cast<uint8_t>(point.layout));
      writer.u32(point.request_bytes);
      writer.u32(point.response_bytes);
      writer.u32(point.pending);
      writer.u64(message.setup.run_key);
      break;
    }
    case MessageKind::kPhase:
      writer.u8(static_cast<uint8_t>(message.phase.kind));
      writer.u8(message.phase.verify ? 1 : 0);
      writer.u64(message.phase.number);
      break;
    case MessageKind::kReport: {
      const Report& report = message.report;
      writer.u64(report.requests);
      writer.u64(report.mismatches);
      writer.u8(report.cost ? 1 : 0);
      writer.u8(static_cast<uint8_t>(report.cost ? report.cost->unit : CpuUnit::kCycles));
      writer.u64(std::bit_cast<uint64_t>(report.cost ? report.cost->per_message : 0.0));
      break;
    }
    case MessageKind::kFailed:
      writer.u8(static_cast<uint8_t>(message.code));
      writer.string(std::string_view(message.cause).substr(0, kMaxCauseBytes));
      break;
    default:
      break;
  }
  return control.send(writer.bytes());
}

Result<Message> receive_message(ControlConnection& control, int64_t timeout_ns) {
  const uint64_t start_ns = now_ns();
  Result<std::vector<std::byte>> frame = control.receive(std::min(timeout_ns, kInterruptLookNs));
  while (!frame.ok() && frame.status().code() == StatusCode::kTimeout && !interrupted()) {
    const auto waited_ns = static_cast<int64_t>(now_ns() - start_ns);
    if (waited_ns >= timeout_ns) break;
    frame = control.receive(std::min(timeout_ns - waited_ns, kInterruptLookNs));
  }
  VERBENA_RETURN_IF_ERROR(frame.status());

  WireReader reader(*frame);
  if (reader.u16() != kVersion) {
    return Status(
        StatusCode::kProtocolViolation,
        "the peer's benchmark speaks another version; run the same release on both sides");
  }
  Message message;
  message.kind = static_cast<MessageKind>(reader.u8());
  switch (message.kind) {
    case MessageKind::kSetup: {
      Point& point = message.setup.point;
      point.protocol = static_cast<Protocol>(reader.u8());
      point.layout = static_cast<MarkLayout>(reader.u8());
      point.request_bytes = reader.u32();
      point.response_bytes = reader.u32();
      point.pending = reader.u32();
      message.setup.run_key = reader.u64();
      break;
    }
    case MessageKind::kPhase:
      message.phase.kind = static_cast<PhaseKind>(reader.u8());
      message.phase.verify = reader.u8() != 0;
      message.phase.number = reader.u64();
      break;
    case MessageKind::kReport: {
      Report& report = message.report;
      report.requests = reader.u64();
      report.mismatches = reader.u64();
      const bool has_cost = reader.u8() != 0;
      const auto unit = static_cast<CpuUnit>(reader.u8());
      const auto per_message = std::bit_cast<double>(reader.u64());
      if (has_cost) report.cost = CpuCost{unit, per_message};
      break;
    }
    case MessageKind::kFailed:
      message.code = static_cast<StatusCode>(reader.u8());
      message.cause = reader.string(kMaxCauseBytes);
      break;
    case MessageKind::kReady:
    case MessageKind::kBegun:
    case MessageKind::kEndOfPhase:
    case MessageKind::kTearDown:
    case MessageKind::kDone:
    case MessageKind::kBye:
      break;
    default:
      return Status(StatusCode::kProtocolViolation,
                    "the peer sent no message of a benchmark; run the same release on both sides");
  }
  VERBENA_RETURN_IF_ERROR(reader.finish("benchmark's message"));
  VERBENA_RETURN_IF_ERROR(check(message));
  return message;
}

Result<Message> expect_message(ControlConnection& control, MessageKind kind, int64_t timeout_ns) {
  VERBENA_ASSIGN_OR_RETURN(Message message, receive_message(control, timeout_ns));
  if (message.kind == kind) return message;
  if (message.kind == MessageKind::kFailed) {
    return Status(message.code, std::move(message.cause));
  }
  return Status(
      StatusCode::kProtocolViolation,
      fmt::format("the peer sent message {} where {} was due; run the same release on both "
                  "sides",
                  static_cast<int>(message.kind), static_cast<int>(kind)));
}

}  // namespace verbena::bench
