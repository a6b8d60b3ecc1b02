#include "src/job/member.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "src/base/wire.h"
#include "verbena/job.h"

namespace verbena::job {

namespace {

constexpr uint32_t kMagic = 0x424f4a56;  // "VJOB"
constexpr size_t kMaxHostBytes = 255;
constexpr size_t kMaxReasonBytes = 1024;

Status check_beginning(WireReader& reader, const std::string& peer) {
  const uint32_t magic = reader.u32();
  const uint16_t version = reader.u16();
  if (reader.failed() || magic != kMagic) {
    return Status(
        StatusCode::kProtocolViolation,
        fmt::format(
            "the peer {} is not a rank of this job; were all ranks started by the same command?",
            peer));
  }
  if (version != kJobVersion) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("the peer {} joins jobs by version {}, this is version {}; run the "
                              "same release on all hosts",
                              peer, version, kJobVersion));
  }
  return {};
}

WireWriter begin() {
  WireWriter writer;
  writer.u32(kMagic);
  writer.u16(kJobVersion);
  return writer;
}

}  // namespace

std::vector<std::byte> encode(const JoinRequest& request) {
  WireWriter writer = begin();
  writer.u32(request.rank);
  writer.u32(request.size);
  writer.u16(request.port);
  writer.string(std::string_view(request.host).substr(0, kMaxHostBytes));
  return {writer.bytes().begin(), writer.bytes().end()};
}

Result<JoinRequest> decode_request(std::span<const std::byte> frame, const std::string& peer) {
  WireReader reader(frame);
  VERBENA_RETURN_IF_ERROR(check_beginning(reader, peer));
  JoinRequest request;
  request.rank = reader.u32();
  request.size = reader.u32();
  request.port = reader.u16();
  request.host = reader.string(kMaxHostBytes);
  VERBENA_RETURN_IF_ERROR(reader.finish("rank's introduction"));
  return request;
}

std::vector<std::byte> encode(const Result<std::vector<Member>>& members) {
  WireWriter writer = begin();
  writer.u8(static_cast<uint8_t>(members.status().code()));
  if (!members.ok()) {
    writer.string(std::string_view(members.status().message()).substr(0, kMaxReasonBytes));
  } else {
    writer.u32(static_cast<uint32_t>(members->size()));
    for (const Member& member : *members) {
      writer.string(member.address);
      writer.u16(member.port);
      writer.string(member.host);
    }
  }
  return {writer.bytes().begin(), writer.bytes().end()};
}

Status refusal_in(std::span<const std::byte> frame) {
  WireReader reader(frame);
  if (reader.u32() != kMagic || reader.u16() != kJobVersion) return {};
  const uint8_t code = reader.u8();
  std::string reason = reader.string(kMaxReasonBytes);
  if (code == 0 || !reader.finish("refusal").ok()) return {};
  if (reason.empty()) reason = "no reason given";
  const uint8_t last = static_cast<uint8_t>(StatusCode::kInternal);
  return Status(static_cast<StatusCode>(std::min(code, last)), std::move(reason));
}

Result<std::vector<Member>> decode_members(std::span<const std::byte> frame, uint32_t size,
                                           const std::string& peer) {
  if (const Status refusal = refusal_in(frame); !refusal.ok()) {
    return Status(refusal.code(),
                  fmt::format("the coordinator {} refused this rank: {}", peer, refusal.message()));
  }
  WireReader reader(frame);
  VERBENA_RETURN_IF_ERROR(check_beginning(reader, peer));
  if (reader.u8() != 0) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("the coordinator {} refused this rank without a reason", peer));
  }
  const uint32_t count = reader.u32();
  std::vector<Member> members;
  for (uint32_t i = 0; i < count && i < size && !reader.failed(); ++i) {
    Member member;
    member.address = reader.string(kMaxHostBytes);
    member.port = reader.u16();
    member.host = reader.string(kMaxHostBytes);
    members.push_back(std::move(member));
  }
  VERBENA_RETURN_IF_ERROR(reader.finish("coordinator's list of ranks"));
  if (count != size) {
    return Status(
        StatusCode::kProtocolViolation,
        fmt::format("the coordinator {} lists {} ranks, {} were expected", peer, count, size));
  }
  return members;
}

Result<HostAndPort> split_address(const std::string& text) {
  HostAndPort parts{.host = {}, .port = kDefaultCoordinatorPort};
  const size_t colon = text.rfind(':');
  // More than one colon without brackets is an IPv6 address.
  const bool has_port = colon != std::string::npos &&
                        (text.front() == '[' ? text[colon - 1] == ']' : text.find(':') == colon);
  parts.host = text.substr(0, has_port ? colon : text.size());
  bool right = !parts.host.empty();
  if (has_port) {
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, parts.port);
    right = right && error == std::errc() && rest == end && parts.port != 0;
  }
  if (!right) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the coordinator '{}' is not of the form HOST:PORT", text));
  }
  return parts;
}

std::string address_of(const std::string& peer_name) {
  const size_t colon = peer_name.rfind(':');
  std::string address = peer_name.substr(0, colon);
  if (address.size() > 2 && address.front() == '[') address = address.substr(1, address.size() - 2);
  return address;
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.rfind("127.", 0) == 0 || address.rfind("::ffff:127.", 0) == 0;
}

}  // namespace verbena::job
