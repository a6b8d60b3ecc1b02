// What is seen of a process on soft0 from outside: counters, verbena top, traces, packets, and why
// a verb was refused. observe_process makes the requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "tests/support/run_tool.h"

namespace verbena {
namespace {

using test::Outcome;
using test::read_file;
using test::ScratchDirectory;
using test::ToolProcess;
using testing::HasSubstr;

constexpr const char* kObserved = VERBENA_TEST_PROCESSES "/observe_process";

// ---- a strict reader of what --pcap writes, by the InfiniBand specification ----

struct Packet {
  std::string source;
  std::string destination;
  unsigned opcode = 0;
  bool solicited = false;
  bool asks_for_ack = false;
  uint32_t psn = 0;
  uint32_t destination_qp = 0;
  std::optional<uint32_t> source_qp;
  std::optional<uint32_t> qkey;
  std::optional<uint64_t> address;
  std::optional<uint32_t> rkey;
  std::optional<uint32_t> dma_bytes;
  std::optional<uint64_t> swap;
  std::optional<uint64_t> compare;
  std::optional<unsigned> syndrome;
  std::optional<uint32_t> message_number;
  std::optional<uint64_t> original;
  std::optional<uint32_t> immediate;
  std::string payload;
  uint32_t wire_bytes = 0;
  uint32_t captured_bytes = 0;
};

class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}
  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    for (const unsigned char byte : take(bytes)) value = value << 8 | byte;
    return value;
  }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  std::string take(size_t bytes) {
    EXPECT_LE(bytes, left());
    const std::string taken = bytes_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  size_t left() const { return bytes_.size() - at_; }
  size_t at() const { return at_; }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

// Bit by bit.
uint32_t crc32_of(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const unsigned char byte : bytes) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      const bool one = ((crc ^ (byte >> bit)) & 1) != 0;
      crc = crc >> 1 ^ (one ? 0xedb88320 : 0);
    }
  }
  return ~crc;
}

std::string ip_text(uint32_t address) {
  std::ostringstream text;
  text << (address >> 24) << '.' << (address >> 16 & 255) << '.' << (address >> 8 & 255) << '.'
       << (address & 255);
  return text.str();
}

void check_ip_checksum(const std::string& header) {
  uint32_t sum = 0;
  for (size_t i = 0; i < 20; i += 2) {
    sum += static_cast<uint32_t>(static_cast<unsigned char>(header[i]) << 8 |
                                 static_cast<unsigned char>(header[i + 1]));
  }
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  EXPECT_EQ(sum, 0xffffu);
}

std::string with_ones(const std::string& frame) {
  std::string masked = std::string(8, '\xff') + frame.substr(14);
  // TOS, TTL, both checksums, and the reserved byte of BTH, behind the eight bytes.
  for (const size_t at : {1, 8, 10, 11, 26, 27, 32}) masked[8 + at] = '\xff';
  return masked;
}

// `whole`: nothing was cut, so that the CRC is there.
Packet parse_frame(const std::string& frame, uint32_t wire_bytes) {
  const bool whole = frame.size() == wire_bytes;
  Packet packet;
  packet.wire_bytes = wire_bytes;
  packet.captured_bytes = static_cast<uint32_t>(frame.size());
  Reader reader(frame);
  reader.take(12);
  EXPECT_EQ(reader.number(2), 0x0800u);
  check_ip_checksum(frame.substr(14, 20));
  EXPECT_EQ(reader.number(1), 0x45u);
  reader.take(1);
  EXPECT_EQ(reader.number(2), wire_bytes - 14);
  reader.take(4);
  reader.take(1);
  EXPECT_EQ(reader.number(1), 17u);
  reader.take(2);
  packet.source = ip_text(reader.u32());
  packet.destination = ip_text(reader.u32());
  reader.take(2);
  EXPECT_EQ(reader.number(2), 4791u);
  EXPECT_EQ(reader.number(2), wire_bytes - 34);
  reader.take(2);
  packet.opcode = static_cast<unsigned>(reader.number(1));
  const auto flags = static_cast<unsigned>(reader.number(1));
  packet.solicited = (flags & 0x80) != 0;
  const unsigned padding = flags >> 4 & 3;
  EXPECT_EQ(flags & 15, 0u);
  EXPECT_EQ(reader.number(2), 0xffffu);
  EXPECT_EQ(reader.number(1), 0u);
  packet.destination_qp = static_cast<uint32_t>(reader.number(3));
  packet.asks_for_ack = (reader.number(1) & 0x80) != 0;
  packet.psn = static_cast<uint32_t>(reader.number(3));
  const unsigned operation = packet.opcode & 0x1f;
  const auto is = [operation](std::initializer_list<unsigned> operations) {
    return std::find(operations.begin(), operations.end(), operation) != operations.end();
  };
  if (packet.opcode >> 5 == 3) {
    packet.qkey = reader.u32();
    reader.take(1);
    packet.source_qp = static_cast<uint32_t>(reader.number(3));
  }
  if (is({0x06, 0x0a, 0x0b, 0x0c, 0x13, 0x14})) {
    packet.address = reader.number(8);
    packet.rkey = reader.u32();
    if (is({0x13, 0x14})) {
      packet.swap = reader.number(8);
      packet.compare = reader.number(8);
    } else {
      packet.dma_bytes = reader.u32();
    }
  }
  if (is({0x0d, 0x0f, 0x10, 0x11, 0x12})) {
    packet.syndrome = static_cast<unsigned>(reader.number(1));
    packet.message_number = static_cast<uint32_t>(reader.number(3));
  }
  if (is({0x12})) packet.original = reader.number(8);
  if (is({0x03, 0x05, 0x09, 0x0b})) packet.immediate = reader.u32();
  if (!whole) {
    packet.payload = reader.take(reader.left());
    return packet;
  }
  packet.payload = reader.take(reader.left() - padding - 4);
  EXPECT_EQ((packet.payload.size() + padding) % 4, 0u);
  EXPECT_EQ(reader.take(padding), std::string(padding, '\0'));
  const std::string check = reader.take(4);
  uint32_t crc = 0;
  std::memcpy(&crc, check.data(), sizeof(crc));
  EXPECT_EQ(crc, crc32_of(with_ones(frame.substr(0, frame.size() - 4))));
  return packet;
}

std::vector<Packet> parse_pcap(const std::string& path, uint32_t snap_bytes = 65535,
                               bool of_one_thread = true) {
  const std::string bytes = read_file(path);
  uint32_t header[6] = {};
  EXPECT_GE(bytes.size(), sizeof(header));
  std::memcpy(header, bytes.data(), std::min(sizeof(header), bytes.size()));
  EXPECT_EQ(header[0], 0xa1b23c4du);
  EXPECT_EQ(header[1], 0x00040002u);
  EXPECT_EQ(header[4], snap_bytes);
  EXPECT_EQ(header[5], 1u);
  std::vector<Packet> packets;
  uint64_t last_ns = 0;
  for (size_t at = sizeof(header); at < bytes.size();) {
    uint32_t head[4] = {};
    if (at + sizeof(head) > bytes.size()) {
      ADD_FAILURE() << "half a packet at " << at;
      break;
    }
    std::memcpy(head, &bytes[at], sizeof(head));
    EXPECT_LE(head[2], snap_bytes);
    EXPECT_LE(head[2], head[3]);
    const uint64_t time_ns = head[0] * uint64_t{1'000'000'000} + head[1];
    // What several threads do is written in the order of time within each write only.
    if (of_one_thread) {
      EXPECT_GE(time_ns, last_ns);
    }
    last_ns = time_ns;
    packets.push_back(parse_frame(bytes.substr(at + sizeof(head), head[2]), head[3]));
    at += sizeof(head) + head[2];
  }
  return packets;
}

Outcome observe(const std::vector<std::string>& arguments,
                const std::map<std::string, std::string>& environment) {
  std::vector<std::string> command = {kObserved};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return ToolProcess(command, environment).wait();
}

mode_t mode_of(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
}

std::vector<nlohmann::json> slices_in(const std::string& path, const std::string& category) {
  std::vector<nlohmann::json> slices;
  for (const nlohmann::json& event : nlohmann::json::parse(read_file(path))) {
    if (event["ph"] == "X" && event["cat"] == category) slices.push_back(event);
  }
  return slices;
}

// The queue pair numbers and more that observe_process prints behind `name`.
std::vector<uint64_t> printed(const Outcome& outcome, const std::string& name) {
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first != name) continue;
    return {std::istream_iterator<uint64_t>(words), {}};
  }
  ADD_FAILURE() << "no " << name << " in " << outcome.out << outcome.err;
  return std::vector<uint64_t>(4);
}

class ObserveTest : public testing::Test {
 protected:
  std::map<std::string, std::string> environment(
      std::map<std::string, std::string> more = {}) const {
    more["VERBENA_RUNTIME_DIR"] = scratch_.path();
    return more;
  }
  ScratchDirectory scratch_;
};

TEST_F(ObserveTest, TheTraceHasASliceForEachRequest) {
  const std::string file = scratch_.file("t.json");
  const Outcome outcome = observe({"requests"}, environment({{"VERBENA_TRACE", file}}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(mode_of(file), 0600u);
  std::vector<std::tuple<std::string, uint64_t, uint64_t, std::string>> seen;
  for (const nlohmann::json& slice : slices_in(file, "send")) {
    EXPECT_GE(slice["dur"].get<double>(), 0);
    const nlohmann::json& arguments = slice["args"];
    seen.emplace_back(slice["name"], arguments["wr_id"], arguments["bytes"], arguments["status"]);
  }
  using Slice = std::tuple<std::string, uint64_t, uint64_t, std::string>;
  EXPECT_THAT(
      seen,
      testing::ElementsAre(
          Slice("SEND", 1, 10, "SUCCESS"), Slice("RDMA_WRITE", 2, 2500, "SUCCESS"),
          Slice("RDMA_WRITE_WITH_IMM", 3, 8, "SUCCESS"), Slice("RDMA_READ", 4, 2500, "SUCCESS"),
          Slice("ATOMIC_CMP_AND_SWP", 5, 8, "SUCCESS"),
          Slice("ATOMIC_FETCH_AND_ADD", 6, 8, "SUCCESS"),
          Slice("SEND_WITH_IMM", 7, 1025, "SUCCESS"), Slice("SEND", 8, 5, "SUCCESS"),
          Slice("SEND_WITH_IMM", 9, 16, "SUCCESS"), Slice("RDMA_WRITE", 10, 0, "SUCCESS"),
          Slice("RDMA_WRITE", 11, 4, "SUCCESS"), Slice("RDMA_WRITE", 12, 4, "REM_ACCESS_ERR"),
          Slice("RDMA_WRITE", 13, 4, "WR_FLUSH_ERR"), Slice("RDMA_WRITE", 1, 1500, "SUCCESS"),
          Slice("SEND_WITH_IMM", 2, 1, "SUCCESS"), Slice("SEND", 2, 33, "SUCCESS"),
          Slice("SEND_WITH_IMM", 3, 33, "SUCCESS"), Slice("SEND", 3, 2, "not polled")));
  EXPECT_EQ(slices_in(file, "receive").size(), 5u + 1 + 2);
}

TEST_F(ObserveTest, SlicesOfATrackDoNotOverlap) {
  const std::string file = scratch_.file("t.json");
  ASSERT_EQ(observe({"requests"}, environment({{"VERBENA_TRACE", file}})).exit_code, 0);
  std::map<uint64_t, std::vector<std::pair<double, double>>> tracks;
  std::map<uint64_t, std::string> names;
  for (const nlohmann::json& event : nlohmann::json::parse(read_file(file))) {
    if (event["ph"] == "X") {
      tracks[event["tid"]].emplace_back(event["ts"].get<double>(), event["dur"].get<double>());
    } else if (event["name"] == "thread_name") {
      names[event["tid"]] = event["args"]["name"];
    } else if (event["name"] == "dropped_events") {
      EXPECT_EQ(event["args"]["dropped"], 0);
    }
  }
  ASSERT_FALSE(tracks.empty());
  for (auto& [track, slices] : tracks) {
    EXPECT_THAT(names[track], HasSubstr("QP 0x"));
    std::sort(slices.begin(), slices.end());
    for (size_t i = 1; i < slices.size(); ++i) {
      // To the nanosecond that a double of microseconds has.
      EXPECT_LE(slices[i - 1].first + slices[i - 1].second, slices[i].first + 0.01);
    }
  }
}

TEST_F(ObserveTest, PacketsAreThoseOfRoce) {
  const std::string file = scratch_.file("p.pcap");
  const Outcome outcome = observe({"requests"}, environment({{"VERBENA_PCAP", file}}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(mode_of(file), 0600u);
  const std::vector<uint64_t> rc = printed(outcome, "rc");
  const std::vector<uint64_t> uc = printed(outcome, "uc");
  const std::vector<uint64_t> ud = printed(outcome, "ud");
  const std::vector<Packet> packets = parse_pcap(file);
  // Opcode, packet sequence number, payload, acknowledgement asked for.
  using Seen = std::tuple<unsigned, uint32_t, size_t, bool>;
  std::vector<Seen> seen;
  seen.reserve(packets.size());
  for (const Packet& packet : packets) {
    seen.emplace_back(packet.opcode, packet.psn, packet.payload.size(), packet.asks_for_ack);
  }
  const std::vector<Seen> expected = {
      {0x04, 0xfffffe, 10, true},     // SEND
      {0x11, 0xfffffe, 0, false},     //
      {0x06, 0xffffff, 1024, false},  // WRITE of 2500 B, and the sequence numbers go around
      {0x07, 0, 1024, false},
      {0x08, 1, 452, true},
      {0x0b, 2, 8, true},   // WRITE_WITH_IMM
      {0x11, 2, 0, false},  // of both
      {0x0c, 3, 0, true},   // READ
      {0x0d, 3, 1024, false},
      {0x0e, 4, 1024, false},
      {0x0f, 5, 452, false},
      {0x13, 6, 0, true},  // atomics
      {0x14, 7, 0, true},
      {0x12, 6, 0, false},
      {0x12, 7, 0, false},
      {0x00, 8, 1024, false},  // SEND_WITH_IMM
      {0x03, 9, 1, true},
      {0x11, 9, 0, false},
      {0x04, 10, 5, true},  // inline
      {0x11, 10, 0, false},
      {0x05, 11, 16, true},  // by ibv_wr_start()
      {0x0a, 12, 0, true},
      {0x11, 11, 0, false},
      {0x11, 12, 0, false},
      {0x0a, 13, 4, true},
      {0x11, 13, 0, false},
      {0x0a, 14, 4, true},  // refused by the peer; what follows never leaves
      {0x11, 14, 0, false},
      {0x26, 0xfffffe, 1024, false},  // UC
      {0x28, 0xffffff, 476, false},
      {0x25, 0, 1, false},
      {0x24, 1, 2, false},
      {0x64, 0xfffffe, 33, false},  // UD
      {0x65, 0xffffff, 33, false},
  };
  ASSERT_EQ(seen, expected);
  for (const Packet& packet : packets) {
    EXPECT_THAT(packet.source, testing::StartsWith("10.86."));
    const bool answer = packet.syndrome.has_value() || packet.opcode == 0x0e;
    const std::vector<uint64_t>& numbers = packet.opcode >= 0x60   ? ud
                                           : packet.opcode >= 0x20 ? uc
                                                                   : rc;
    EXPECT_EQ(packet.destination_qp, numbers[answer ? 0 : 1]);
    EXPECT_EQ(packet.immediate.value_or(0x01020304), 0x01020304u);
  }
  EXPECT_EQ(packets[2].address, rc[2]);
  EXPECT_EQ(packets[2].rkey, rc[3]);
  EXPECT_EQ(packets[2].dma_bytes, 2500u);
  EXPECT_EQ(packets[7].dma_bytes, 2500u);
  // What the READ brought is what the WRITE had sent, but for the immediate's 8 bytes, which are
  // the same.
  EXPECT_EQ(packets[8].payload, packets[2].payload);
  EXPECT_EQ(packets[10].payload, packets[4].payload);
  EXPECT_EQ(packets[11].compare, 0x0102030405060708u);
  EXPECT_EQ(packets[11].swap, 77u);
  EXPECT_EQ(packets[12].swap, 3u);
  EXPECT_TRUE(packets[16].solicited);
  EXPECT_EQ(packets[27].syndrome, 0x62u);
  EXPECT_EQ(packets[32].qkey, 0x1234u);
  EXPECT_EQ(packets[32].source_qp, ud[0]);
  uint32_t messages = 0;
  for (const Packet& packet : packets) {
    if (!packet.message_number.has_value()) continue;
    EXPECT_GE(*packet.message_number, messages);
    messages = *packet.message_number;
  }
  EXPECT_EQ(messages, 11u);
}

TEST_F(ObserveTest, SequenceNumbersBeginWhereTheQueuePairsDo) {
  const std::string file = scratch_.file("p.pcap");
  ASSERT_EQ(observe({"early"}, environment({{"VERBENA_PCAP", file}})).exit_code, 0);
  const std::vector<Packet> packets = parse_pcap(file);
  ASSERT_EQ(packets.size(), 2u);  // a WRITE and its acknowledgement
  EXPECT_EQ(packets[0].psn, 0xfffffeu);
}

TEST_F(ObserveTest, PacketsAreCutAtTheSnapLength) {
  const std::string file = scratch_.file("p.pcap");
  ASSERT_EQ(
      observe({"requests"}, environment({{"VERBENA_PCAP", file}, {"VERBENA_PCAP_SNAP", "100"}}))
          .exit_code,
      0);
  const std::vector<Packet> packets = parse_pcap(file, 100);
  ASSERT_EQ(packets.size(), 34u);
  EXPECT_EQ(packets[2].captured_bytes, 100u);
  EXPECT_EQ(packets[2].wire_bytes, 14u + 20 + 8 + 12 + 16 + 1024 + 4);
  EXPECT_LT(packets[1].captured_bytes, 100u);
}

TEST_F(ObserveTest, TsharkReadsThePackets) {
  if (system("tshark --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "install tshark";
  const std::string file = scratch_.file("p.pcap");
  ASSERT_EQ(observe({"requests"}, environment({{"VERBENA_PCAP", file}})).exit_code, 0);
  // Payloads here are of no protocol that it might guess.
  const Outcome shown =
      ToolProcess({"tshark", "-r", file, "--disable-protocol", "rpcordma", "-T", "fields", "-e",
                   "infiniband.bth.opcode", "-e", "_ws.malformed"})
          .wait();
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  std::string expected;
  for (const Packet& packet : parse_pcap(file)) {
    expected += std::to_string(packet.opcode) + "\t\n";
  }
  EXPECT_EQ(shown.out, expected);
}

// The slices of all files, none twice: threads have rings of their own, and so has the child.
TEST_F(ObserveTest, ThreadsAndForkedChildrenAreWritten) {
  for (const char* pattern : {"t.json", "t-%p.json"}) {
    const ScratchDirectory files;
    const Outcome outcome =
        observe({"threads", "500"},
                environment({{"VERBENA_TRACE", files.file(pattern)},
                             {"VERBENA_PCAP", files.file(std::string(pattern) + ".pcap")}}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    size_t traces = 0;
    size_t captures = 0;
    for (const auto& entry : std::filesystem::directory_iterator(files.path())) {
      EXPECT_EQ(mode_of(entry.path()), 0600u);
      if (entry.path().extension() == ".pcap") {
        ++captures;
        EXPECT_EQ(parse_pcap(entry.path(), 65535, false).size(), 4u * 500 * 2);
        continue;
      }
      ++traces;
      EXPECT_EQ(slices_in(entry.path(), "send").size(), 4u * 500);
      EXPECT_EQ(entry.path().string().find("%p"), std::string::npos);
    }
    EXPECT_EQ(traces, 2u) << pattern;
    EXPECT_EQ(captures, 2u) << pattern;
  }
}

TEST_F(ObserveTest, ContextsKeepTheirNetworkWhileObserved) {
  const Outcome outcome =
      observe({"networks"}, environment({{"VERBENA_TRACE", scratch_.file("t.json")}}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(slices_in(scratch_.file("t.json"), "send").size(), 2u);
}

TEST_F(ObserveTest, WhatIsPostedToObjectsThatAreGoneIsRefused) {
  for (const char* fault : {"", "drop=1"}) {
    for (const char* check : {"", "exit-code=0"}) {
      std::map<std::string, std::string> settings =
          environment({{"VERBENA_TRACE", scratch_.file("t.json")}});
      if (*fault != '\0') settings["VERBENA_FAULT"] = fault;
      if (*check != '\0') settings["VERBENA_CHECK"] = check;
      const Outcome outcome = observe({"gone"}, settings);
      EXPECT_EQ(outcome.exit_code, 0) << fault << " " << check << "\n" << outcome.err;
    }
  }
}

// A process that is killed leaves what was written until then, and it can be read.
TEST_F(ObserveTest, AKilledProcessLeavesAReadableTrace) {
  const std::string file = scratch_.file("t.json");
  ToolProcess observed({kObserved, "writes", "1000"}, environment({{"VERBENA_TRACE", file}}));
  for (Waiter waiter; observed.is_running();) {
    if (!std::filesystem::exists(file) || std::filesystem::file_size(file) == 0) {
      waiter.idle();
      continue;
    }
    // It may be in the middle of a write.
    const nlohmann::json events = nlohmann::json::parse(read_file(file), nullptr, false);
    if (!events.is_discarded() &&
        std::count_if(events.begin(), events.end(),
                      [](const auto& event) { return event["ph"] == "X"; }) == 1000) {
      break;
    }
    waiter.idle();
  }
  observed.signal(SIGKILL);
  observed.wait();
  EXPECT_EQ(slices_in(file, "send").size(), 1000u);
}

TEST_F(ObserveTest, TopShowsWhatALivingProcessDoes) {
  const std::map<std::string, std::string> place = environment();
  ToolProcess observed({kObserved, "writes", "1234"}, place);
  for (Waiter waiter; observed.out().find("done") == std::string::npos && observed.is_running();) {
    waiter.idle();
  }
  const auto top = [&place] {
    const Outcome outcome =
        ToolProcess({VERBENA_TOOL, "top", "--once", "--json", "--interval", "0.01"}, place).wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const nlohmann::json seen = top();
  ASSERT_EQ(seen["processes"].size(), 1u);
  const nlohmann::json& process = seen["processes"][0];
  EXPECT_EQ(process["pid"], observed.pid());
  EXPECT_EQ(process["name"], "observe_process");
  EXPECT_EQ(process["requests"], 1234);
  EXPECT_EQ(process["bytes"], 1234 * 64);
  EXPECT_EQ(process["requests_by_opcode"]["write"], 1234);
  EXPECT_EQ(process["errors"], 0);
  // The two that wrote are destroyed.
  EXPECT_EQ(process["queue_pair_count"], 2);
  EXPECT_EQ(process["queue_pairs"][0]["transport"], "RC");
  EXPECT_EQ(process["queue_pairs"][0]["state"], "RTS");
  EXPECT_EQ(process["queue_pairs"][0]["requests"], 0);
  // What was counted outlives the process, however it ends.
  observed.signal(SIGKILL);
  observed.wait();
  const nlohmann::json after = top();
  EXPECT_EQ(after["processes"].size(), 0u);
  EXPECT_EQ(after["total"]["requests"], 1234);
  ASSERT_EQ(observe({"requests"}, place).exit_code, 0);
  EXPECT_EQ(top()["total"]["requests"], 1234 + 18);
  EXPECT_EQ(top()["total"]["errors"], 2);
}

TEST_F(ObserveTest, TopNamesEachTransport) {
  const std::map<std::string, std::string> place = environment();
  ToolProcess observed({kObserved, "transports"}, place);
  for (Waiter waiter; observed.out().find("done") == std::string::npos && observed.is_running();) {
    waiter.idle();
  }
  const Outcome outcome =
      ToolProcess({VERBENA_TOOL, "top", "--once", "--json", "--interval", "0.01"}, place).wait();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<std::string> transports;
  const nlohmann::json seen = nlohmann::json::parse(outcome.out);
  for (const nlohmann::json& queue_pair : seen["processes"].at(0)["queue_pairs"])
    transports.push_back(queue_pair["transport"]);
  EXPECT_THAT(transports, testing::ElementsAre("RC", "UC", "UD", "XRC", "raw"));
}

TEST_F(ObserveTest, TopEndsByInterruption) {
  ToolProcess top({VERBENA_TOOL, "top", "--interval", "0.01"}, environment());
  for (Waiter waiter; top.out().find("requests/s") == std::string::npos && top.is_running();) {
    waiter.idle();
  }
  top.signal(SIGINT);
  EXPECT_EQ(top.wait().exit_code, 0);
}

TEST_F(ObserveTest, RefusedRequestsAreExplained) {
  const Outcome silent = observe({"refused"}, environment());
  EXPECT_EQ(silent.exit_code, 0);
  EXPECT_EQ(silent.err, "");
  const Outcome outcome = observe({"refused"}, environment({{"VERBENA_LOG", "info"}}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("ibv_post_send returned EINVAL: soft0: queue pair"));
  EXPECT_THAT(outcome.err, HasSubstr("wr_id 21: 65 B inline; the queue pair has 64"));
  EXPECT_THAT(outcome.err, HasSubstr("wr_id 22: a request with 3 SGEs; the queue pair has 2"));
  EXPECT_THAT(outcome.err, HasSubstr("ibv_post_recv returned EINVAL: "));
  EXPECT_THAT(outcome.err, HasSubstr("a receive with 3 SGEs; the queue pair has 2"));
  EXPECT_THAT(outcome.err, HasSubstr("wr_id 24: RDMA_READ with IBV_SEND_INLINE"));
  // A thousand lines would be one flood.
  EXPECT_LT(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 500);
}

TEST_F(ObserveTest, WhatCannotBeWrittenIsSaidBeforeTheProgramStarts) {
  const std::string folder = scratch_.path();
  for (const auto& [option, value, reason] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"--trace", folder + "/none/t.json", "No such file or directory"},
           {"--pcap", folder, "Is a directory"},
           {"--pcap-snap", "63", "64 to 65535"},
           {"--pcap-snap", "1e3", "64 to 65535"},
           {"--no-such-option", "1", "there is no option"}}) {
    const Outcome outcome = test::run_tool({"run", option, value, "--", "echo", "started"});
    EXPECT_EQ(outcome.exit_code, 2) << option;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, testing::StartsWith("verbena: error: run: "));
    EXPECT_THAT(outcome.err, HasSubstr(reason));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
  }
}

// Under `verbena run`: options before the program, and the counters where programs look for them.
class ObserveRunTest : public ObserveTest {
 protected:
  void SetUp() override {
    const std::string library = VERBENA_TEST_PROCESSES "/../lib/verbena/libverbena-verbs.so";
    if (access(library.c_str(), R_OK) != 0) GTEST_SKIP() << "this build has no " << library;
  }
  Outcome run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {VERBENA_TOOL, "run"});
    return ToolProcess(arguments, environment(), scratch_.path()).wait();
  }
};

TEST_F(ObserveRunTest, OptionsReachTheProgram) {
  test::write_file(scratch_.file("t.json"), "of a former run");
  const Outcome outcome = run(
      {"--trace", "t.json", "--pcap=p.pcap", "--pcap-snap", "128", "--", kObserved, "requests"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(slices_in(scratch_.file("t.json"), "send").size(), 18u);
  EXPECT_EQ(parse_pcap(scratch_.file("p.pcap"), 128).size(), 34u);
}

TEST_F(ObserveRunTest, FilesLieWhereTheProgramWasStarted) {
  std::filesystem::create_directory(scratch_.file("elsewhere"));
  const Outcome outcome = run({"--trace", "t.json", "--pcap=p.%p.pcap", "--", "sh", "-c",
                               "cd elsewhere && exec \"$0\" requests", kObserved});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(slices_in(scratch_.file("t.json"), "send").size(), 18u);
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.file("elsewhere")));
}

TEST_F(ObserveRunTest, SysfsHasTheCounters) {
  ASSERT_EQ(observe({"requests"}, environment()).exit_code, 0);
  const Outcome outcome =
      run({"--", "sh", "-c",
           "cd /sys/class/infiniband/soft0/ports/1; cat counters/port_xmit_packets "
           "hw_counters/rx_write_requests $PWD/hw_counters/rx_read_requests "
           "hw_counters/rx_atomic_requests hw_counters/rx_send_requests hw_counters/req_cqe_error; "
           "cd counters; cat port_xmit_data port_rcv_data"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  constexpr uint64_t kBytes = 10 + 2500 + 8 + 2500 + 8 + 8 + 1025 + 5 + 16 + 4 + 1500 + 1 + 2 + 66;
  const std::string words = std::to_string(kBytes / 4) + "\n";
  EXPECT_EQ(outcome.out, "18\n7\n1\n2\n8\n2\n" + words + words);
}

}  // namespace
}  // namespace verbena
