#include "src/remote/region_description.h"

#include <fmt/format.h>

namespace verbena::remote {
namespace {

enum Flag : uint8_t { kWritable = 1, kAtomics = 2 };

}  // namespace

std::vector<std::byte> encode(const RegionDescription& description) {
  WireWriter writer;
  writer.u8(static_cast<uint8_t>(description.role));
  if (description.role == Role::kBackEnd) {
    writer.u64(description.address);
    writer.u64(description.size_bytes);
    writer.u32(description.rkey);
    writer.u8(static_cast<uint8_t>((description.writable ? kWritable : 0) |
                                   (description.atomics ? kAtomics : 0)));
  }
  return {writer.bytes().begin(), writer.bytes().end()};
}

Status decode(WireReader& reader, Role mine, RegionDescription* description) {
  const uint8_t role = reader.u8();
  if (role == static_cast<uint8_t>(mine)) {
    // The rest says nothing that matters.
    reader.raw(reader.rest_bytes());
    return Status(StatusCode::kInvalidArgument,
                  mine == Role::kBackEnd
                      ? "the peer exposes a region, too; one side must call open_region()"
                      : "the peer opens a region, too; one side must call expose_region()");
  }
  if (mine == Role::kBackEnd && role == static_cast<uint8_t>(Role::kFrontEnd)) {
    description->role = Role::kFrontEnd;
    return Status::ok_status();
  }
  description->role = Role::kBackEnd;
  description->address = reader.u64();
  description->size_bytes = reader.u64();
  description->rkey = reader.u32();
  const uint8_t flags = reader.u8();
  description->writable = (flags & kWritable) != 0;
  description->atomics = (flags & kAtomics) != 0;
  if (role != static_cast<uint8_t>(Role::kBackEnd) || flags > (kWritable | kAtomics) ||
      description->size_bytes == 0 || description->size_bytes > UINT64_MAX - description->address) {
    return Status(
        StatusCode::kProtocolViolation,
        fmt::format("the peer describes an invalid region of {} bytes at address {}; run the "
                    "same release on both sides",
                    description->size_bytes, description->address));
  }
  return Status::ok_status();
}

}  // namespace verbena::remote
