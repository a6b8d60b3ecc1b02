#include "src/bench/run/coordination.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>

#include "src/base/runtime.h"
#include "src/base/wire.h"
#include "src/bench/run/interrupt.h"
#include "src/bench/workloads.h"

namespace verbena::bench {

namespace {

constexpr uint16_t kVersion = 6;
constexpr size_t kMaxTextBytes = 256;
constexpr size_t kMaxCauseBytes = 4096;
// Of the largest list: a node's CPUs or threads, a job's responding threads.
constexpr uint32_t kMaxListEntries = 1u << 16;
// How often a wait looks whether the user pressed Ctrl-C.
constexpr int64_t kInterruptLookNs = 50'000'000;

// --- writing ---

void write_double(WireWriter& writer, double value) { writer.u64(std::bit_cast<uint64_t>(value)); }

void write_cpus(WireWriter& writer, const std::vector<int>& cpus) {
  writer.u32(static_cast<uint32_t>(cpus.size()));
  for (const int cpu : cpus) writer.u32(static_cast<uint32_t>(cpu));
}

void write_point(WireWriter& writer, const Point& point) {
  const WorkloadTraits& workload = point.workload->traits();
  writer.string(workload.name);
  writer.u8(static_cast<uint8_t>(point.topology));
  for (const uint32_t count :
       {point.nodes, point.threads, point.responder_nodes, point.responder_threads}) {
    writer.u32(count);
  }
  writer.u8(static_cast<uint8_t>(workload.axes.size()));
  for (const Axis& axis : workload.axes) writer.u64(axis.get(point));
}

void write_costs(WireWriter& writer, const std::vector<WeighedCost>& costs) {
  writer.u32(static_cast<uint32_t>(costs.size()));
  for (const WeighedCost& cost : costs) {
    write_double(writer, cost.cost.cycles);
    writer.u8(cost.cost.instructions ? 1 : 0);
    write_double(writer, cost.cost.instructions.value_or(0));
    writer.u64(cost.messages);
  }
}

void write_report(WireWriter& writer, const Report& report) {
  writer.u64(report.requests);
  writer.u64(report.unanswered);
  writer.u64(report.mismatches);
  writer.u64(report.first_ns);
  writer.u64(report.last_ns);
  for (const uint64_t counter : report.counters) writer.u64(counter);
  writer.u64(report.arrivals);
  writer.u64(report.arrivals_ns);
  writer.u8(static_cast<uint8_t>(report.layout));
  write_costs(writer, report.costs);
  write_costs(writer, report.dispatcher_costs);
  writer.u32(static_cast<uint32_t>(report.latencies.size()));
  for (const LatencyCount& latency : report.latencies) {
    writer.u64(latency.ns);
    writer.u64(latency.count);
    writer.u8(latency.kind);
  }
}

// --- reading; a reader that ran out yields zeros, so every loop ends ---

double read_double(WireReader& reader) { return std::bit_cast<double>(reader.u64()); }

// Of a list's entries, each of a byte at least: one more than there can be lets the reader run out.
uint32_t read_count(WireReader& reader) {
  const uint32_t count = reader.u32();
  return static_cast<uint32_t>(std::min<uint64_t>(count, reader.rest_bytes() + 1));
}

std::vector<int> read_cpus(WireReader& reader) {
  std::vector<int> cpus(std::min(read_count(reader), kMaxListEntries));
  for (int& cpu : cpus) cpu = static_cast<int>(reader.u32());
  return cpus;
}

Status wrong(const char* what) {
  return Status(
      StatusCode::kProtocolViolation,
      fmt::format("the peer's {} is impossible; run the same release on both sides", what));
}

Status read_point(WireReader& reader, Point* point) {
  const Workload* workload = find_workload(reader.string(kMaxTextBytes));
  if (workload == nullptr) return wrong("workload");
  *point = workload->point();
  const uint8_t topology = reader.u8();
  if (topology >= all_topologies().size()) return wrong("topology");
  point->topology = static_cast<Topology>(topology);
  // Whether these go together, wire() tells.
  for (uint32_t* count :
       {&point->nodes, &point->threads, &point->responder_nodes, &point->responder_threads}) {
    *count = reader.u32();
  }
  if (reader.u8() != workload->traits().axes.size()) return wrong("number of axes");
  for (const Axis& axis : workload->traits().axes) {
    const uint64_t value = reader.u64();
    if (!axis.possible(value)) return wrong(std::string(axis.what).c_str());
    axis.set(*point, value);
  }
  return Status::ok_status();
}

void read_costs(WireReader& reader, std::vector<WeighedCost>* costs) {
  costs->resize(std::min(read_count(reader), kMaxListEntries));
  for (WeighedCost& cost : *costs) {
    cost.cost.cycles = read_double(reader);
    const bool counted = reader.u8() != 0;
    const double instructions = read_double(reader);
    if (counted) cost.cost.instructions = instructions;
    cost.messages = reader.u64();
  }
}

Status read_report(WireReader& reader, Report* report) {
  report->requests = reader.u64();
  report->unanswered = reader.u64();
  report->mismatches = reader.u64();
  report->first_ns = reader.u64();
  report->last_ns = reader.u64();
  for (uint64_t& counter : report->counters) counter = reader.u64();
  report->arrivals = reader.u64();
  report->arrivals_ns = reader.u64();
  report->layout = static_cast<MarkLayout>(reader.u8());
  if (report->layout > kLastMarkLayout) return wrong("mark layout");
  read_costs(reader, &report->costs);
  read_costs(reader, &report->dispatcher_costs);
  report->latencies.resize(std::min(read_count(reader), kMaxListEntries));
  for (LatencyCount& latency : report->latencies) {
    latency.ns = reader.u64();
    latency.count = reader.u64();
    latency.kind = reader.u8();
  }
  return Status::ok_status();
}

Status read_body(WireReader& reader, Message* message) {
  switch (message->kind) {
    case MessageKind::kHello:
      message->hello.host = reader.string(kMaxTextBytes);
      message->hello.cpus = read_cpus(reader);
      message->hello.token = reader.u64();
      return Status::ok_status();
    case MessageKind::kSetup: {
      Setup& setup = message->setup;
      VERBENA_RETURN_IF_ERROR(read_point(reader, &setup.point));
      setup.node = reader.u32();
      setup.run_key = reader.u64();
      setup.seed = reader.u64();
      setup.cpus = read_cpus(reader);
      return Status::ok_status();
    }
    case MessageKind::kListening:
    case MessageKind::kConnect:
      message->addresses.resize(std::min(read_count(reader), kMaxListEntries));
      for (ThreadAddress& address : message->addresses) {
        address.host = reader.string(kMaxTextBytes);
        address.port = reader.u16();
      }
      return Status::ok_status();
    case MessageKind::kPhase:
      message->phase.kind = static_cast<PhaseKind>(reader.u8());
      message->phase.verify = reader.u8() != 0;
      message->phase.number = reader.u64();
      message->phase.length.requests = reader.u64();
      message->phase.length.duration_ns = reader.u64();
      message->phase.stall_ns = reader.u64();
      return message->phase.kind > PhaseKind::kTimed ? wrong("phase") : Status::ok_status();
    case MessageKind::kGo:
      message->go.host = reader.string(kMaxTextBytes);
      message->go.now_ns = reader.u64();
      return Status::ok_status();
    case MessageKind::kFinished:
    case MessageKind::kReport:
      return read_report(reader, &message->report);
    case MessageKind::kFailed:
      message->code = static_cast<StatusCode>(reader.u8());
      message->cause = reader.string(kMaxCauseBytes);
      return message->code == StatusCode::kOk || message->code > StatusCode::kInternal
                 ? wrong("status code")
                 : Status::ok_status();
    case MessageKind::kConnected:
    case MessageKind::kBegun:
    case MessageKind::kEndOfPhase:
    case MessageKind::kTearDown:
    case MessageKind::kDone:
    case MessageKind::kAlive:
    case MessageKind::kBye:
      return Status::ok_status();
  }
  return Status(StatusCode::kProtocolViolation,
                "the peer sent no message of a benchmark; run the same release on both sides");
}

}  // namespace

std::string own_address(const ControlConnection& control) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST] = {};
  if (getsockname(control.descriptor(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "127.0.0.1";
  }
  return host;
}

Status send_message(ControlConnection& control, const Message& message) {
  WireWriter writer;
  writer.u16(kVersion);
  writer.u8(static_cast<uint8_t>(message.kind));
  switch (message.kind) {
    case MessageKind::kHello:
      writer.string(std::string_view(message.hello.host).substr(0, kMaxTextBytes));
      write_cpus(writer, message.hello.cpus);
      writer.u64(message.hello.token);
      break;
    case MessageKind::kSetup:
      write_point(writer, message.setup.point);
      writer.u32(message.setup.node);
      writer.u64(message.setup.run_key);
      writer.u64(message.setup.seed);
      write_cpus(writer, message.setup.cpus);
      break;
    case MessageKind::kListening:
    case MessageKind::kConnect:
      writer.u32(static_cast<uint32_t>(message.addresses.size()));
      for (const ThreadAddress& address : message.addresses) {
        writer.string(address.host);
        writer.u16(address.port);
      }
      break;
    case MessageKind::kPhase:
      writer.u8(static_cast<uint8_t>(message.phase.kind));
      writer.u8(message.phase.verify ? 1 : 0);
      writer.u64(message.phase.number);
      writer.u64(message.phase.length.requests);
      writer.u64(message.phase.length.duration_ns);
      writer.u64(message.phase.stall_ns);
      break;
    case MessageKind::kGo:
      writer.string(std::string_view(message.go.host).substr(0, kMaxTextBytes));
      writer.u64(message.go.now_ns);
      break;
    case MessageKind::kFinished:
    case MessageKind::kReport:
      write_report(writer, message.report);
      break;
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
  if (!frame.ok() && frame.status().code() == StatusCode::kTimeout && !interrupted()) {
    // Not the limit of the last look, which is all that the connection knows of.
    return Status(StatusCode::kTimeout,
                  fmt::format("the other side said nothing for {} ms; is its process stopped, or "
                              "its machine overloaded?",
                              timeout_ns / 1'000'000));
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
  VERBENA_RETURN_IF_ERROR(read_body(reader, &message));
  VERBENA_RETURN_IF_ERROR(reader.finish("benchmark's message"));
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
      fmt::format("the peer sent message {} instead of {}; run the same release on both sides",
                  static_cast<int>(message.kind), static_cast<int>(kind)));
}

}  // namespace verbena::bench
