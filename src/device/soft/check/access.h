// Why a key gave no access to memory.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "src/device/soft/check/check_records.h"

namespace verbena::soft {
struct RegionEntry;
}  // namespace verbena::soft

namespace verbena::soft::check {

// What is wrong with [address, address + length) by `key` for `access` in `domain`, by a table of
// regions; empty if nothing is.
std::string explain_region(const RegionEntry* regions, uint64_t address, uint64_t length_bytes,
                           uint32_t key, uint32_t access, uint32_t domain);
// The same of the peer's region that a request names, and of the peer's queue pair.
std::string explain_remote(ibv_qp* qp, const SendRecord& send, uint64_t length_bytes);
// Of an own work request's pieces: the first one that is wrong.
std::string explain_local(const RegionEntry* regions, const std::vector<Piece>& pieces,
                          uint32_t access, uint32_t domain);

// Whether the key names a region of ibv_alloc_null_mr(): pieces of it are no memory of the program.
bool is_null_key(const RegionEntry* regions, uint32_t key, uint32_t domain);

// Where the program has what a request names by `address` and `key`; `address` if the key is of no
// region.
uint64_t program_address(const RegionEntry* regions, uint64_t address, uint32_t key);

// What the peer's region needs for the request, as an access flag; 0 if it needs none.
uint32_t remote_access_of(ibv_wr_opcode opcode);

}  // namespace verbena::soft::check
