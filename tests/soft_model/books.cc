#include "tests/soft_model/books.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "src/base/runtime.h"
#include "tests/soft_model/posting.h"

namespace verbena::soft_model {
namespace {

constexpr size_t kJournalLines = 40;
constexpr const char* kTypes[] = {"?", "?", "RC", "UC", "UD"};

bool has_length(ibv_wc_opcode opcode) {
  return opcode == IBV_WC_RDMA_READ || opcode == IBV_WC_COMP_SWAP || opcode == IBV_WC_FETCH_ADD;
}

std::string text_of(const ibv_wc& wc) {
  return fmt::format("wr_id {:#x} {} opcode {} byte_len {} flags {:#x} imm {:#x} src_qp {:#x}",
                     wc.wr_id, ibv_wc_status_str(wc.status), static_cast<int>(wc.opcode),
                     wc.byte_len, wc.wc_flags, wc.imm_data, wc.src_qp);
}

}  // namespace

Books::Books(const Life& life, Model& model, uint32_t member)
    : life_(life), model_(model), member_(member), ends_(life.ends.size()) {
  for (uint32_t slot = 0; slot < kSharedDepth; ++slot) free_slots_.push_back(slot);
}

void Books::begin_round(uint32_t round, const Round& plan, const Notices& notices) {
  round_ = round;
  notices_ = notices;
  numbers_.clear();
  for (uint32_t i = 0; i < ends_.size(); ++i) {
    numbers_[notices[life_.ends[i].member].ends[i].number] = i;
    ends_[i].flushes_due = plan.ends[i].flushed_receives;
    ends_[i].is_cut = life_.is_cut(i, round);
  }
}

void Books::note(uint32_t end, std::string line) {
  std::deque<std::string>& journal = ends_[end].journal;
  journal.push_back(fmt::format("round {}: {}", round_, std::move(line)));
  if (journal.size() > kJournalLines) journal.pop_front();
}

std::string Books::describe(uint32_t end) const {
  const EndPlan& plan = life_.ends[end];
  return fmt::format("queue pair {} ({}{}{}, to {}, depth {}, receives {})", end, kTypes[plan.type],
                     plan.extended ? ", ibv_wr_start" : "",
                     plan.shared_receives ? ", shared receives" : "",
                     plan.peer == kNobody ? -1 : static_cast<int>(plan.peer), plan.send_depth,
                     life_.receive_depth);
}

void Books::fail(uint32_t end, const std::string& what) const {
  std::string text =
      fmt::format("member {} (process {}), round {} of life {:#x}: {}\n  again: VERBENA_SEED={}\n",
                  member_, getpid(), round_, life_.seed, what, run_seed());
  if (end != kNobody) {
    text += fmt::format("  {}; its last steps:\n", describe(end));
    for (const std::string& line : ends_[end].journal) text += "    " + line + "\n";
  }
  std::fputs(text.c_str(), stderr);
  std::fflush(nullptr);
  _exit(1);
}

std::string Books::waiting() const {
  std::string text;
  for (uint32_t i = 0; i < ends_.size(); ++i) {
    if (life_.ends[i].member != member_ || is_done(i)) continue;
    size_t arriving = 0;
    for (const auto& [from, messages] : model_.end(i).arriving) {
      arriving += messages.size();
    }
    text += fmt::format("  {}: {} sends, {} messages, {} flushes, {} receives\n", describe(i),
                        ends_[i].posted.size(), arriving, ends_[i].flushes_due,
                        ends_[i].receives.size());
    for (const std::string& line : ends_[i].journal) text += "    " + line + "\n";
  }
  return text;
}

bool Books::is_done(uint32_t index) const {
  const EndBooks& end = ends_[index];
  for (const Sent& sent : end.posted) {
    if (sent.signaled || end.sends_ended) return false;
  }
  const EndPlan& plan = life_.ends[index];
  if (end.is_cut) {
    return plan.type != IBV_QPT_RC || plan.shared_receives || end.receives.empty();
  }
  for (const auto& [from, messages] : model_.end(index).arriving) {
    const bool may_be_lost = life_.is_last(round_) && life_.ends[from].member == life_.victim;
    if (!messages.empty() && !may_be_lost) return false;
  }
  return end.flushes_due == 0;
}

void Books::take(const ibv_wc& wc) {
  const auto found = numbers_.find(wc.qp_num);
  if (found == numbers_.end() || life_.ends[found->second].member != member_) {
    fail(kNobody, "a completion of no queue pair: " + text_of(wc));
  }
  note(found->second, "got " + text_of(wc));
  if ((wc.wr_id & kReceiveId) == 0) return take_send(found->second, wc);
  if (wc.status == IBV_WC_WR_FLUSH_ERR) return take_flush(found->second, wc);
  take_receive(found->second, wc);
}

void Books::take_send(uint32_t index, const ibv_wc& wc) {
  EndBooks& end = ends_[index];
  while (!end.posted.empty() && end.posted.front().id != wc.wr_id) {
    if (end.posted.front().signaled || end.sends_ended) {
      fail(index, fmt::format("no completion of request {}", end.posted.front().id));
    }
    end.posted.pop_front();
  }
  if (end.posted.empty()) fail(index, "a completion of no request");
  Sent sent = end.posted.front();
  end.posted.pop_front();
  if (end.is_cut && life_.ends[index].type == IBV_QPT_RC) {
    // Whatever was done in time, one that tells of the end, and then nothing more.
    if (end.sends_ended) {
      sent.status = IBV_WC_WR_FLUSH_ERR;
    } else if (wc.status != IBV_WC_SUCCESS) {
      sent.status = IBV_WC_RETRY_EXC_ERR;
      sent.signaled = end.sends_ended = true;
    }
  }
  if (wc.status != sent.status) {
    fail(index, fmt::format("request {} is predicted to end with {}", sent.id,
                            ibv_wc_status_str(sent.status)));
  }
  if (!sent.signaled && !end.sends_ended) fail(index, "a completion of an unsignaled request");
  if (wc.status != IBV_WC_SUCCESS) return;
  if (wc.opcode != sent.opcode) {
    fail(index, fmt::format("opcode {} is predicted", static_cast<int>(sent.opcode)));
  }
  if (has_length(sent.opcode) && wc.byte_len != sent.size_bytes) {
    fail(index, fmt::format("byte_len {} is predicted", sent.size_bytes));
  }
  if (wc.wc_flags != 0) fail(index, "no flags are predicted");
}

// The number of the receive that a completion is of.
uint64_t Books::claim(uint32_t index, const ibv_wc& wc, uint32_t* slot) {
  EndBooks& end = ends_[index];
  if (life_.ends[index].shared_receives) {
    *slot = static_cast<uint32_t>(wc.wr_id);
    const auto found = shared_.find(*slot);
    if (wc.wr_id != (kReceiveId | kSharedId | *slot) || found == shared_.end()) {
      fail(index, "a completion of no shared receive");
    }
    const uint64_t number = found->second;
    shared_.erase(found);
    free_slots_.push_back(*slot);
    return number;
  }
  if (end.receives.empty()) fail(index, "a completion of no receive");
  const uint64_t number = end.receives.front();
  if (wc.wr_id != (kReceiveId | number)) {
    fail(index, fmt::format("receive {} is predicted", number));
  }
  end.receives.pop_front();
  *slot = static_cast<uint32_t>(number % life_.receive_depth);
  return number;
}

void Books::take_flush(uint32_t index, const ibv_wc& wc) {
  EndBooks& end = ends_[index];
  uint32_t slot = 0;
  if (life_.ends[index].shared_receives) fail(index, "a shared receive is flushed");
  claim(index, wc, &slot);
  if (end.is_cut) {
    end.receives_ended = true;
    return;
  }
  for (const auto& [from, messages] : model_.end(index).arriving) {
    if (!messages.empty()) fail(index, "a receive is flushed before all messages are there");
  }
  if (end.flushes_due-- == 0) fail(index, "no flushed receive is predicted");
}

void Books::check_message(uint32_t index, const Message& message, const ibv_wc& wc) const {
  if (wc.status != message.status) {
    fail(index, std::string("predicted is ") + ibv_wc_status_str(message.status));
  }
  if (wc.status != IBV_WC_SUCCESS) return;
  const bool invalidates = (message.flags & IBV_WC_WITH_INV) != 0;
  if (wc.opcode != message.opcode || wc.wc_flags != message.flags ||
      wc.byte_len != message.byte_len) {
    fail(index, fmt::format("predicted are opcode {}, flags {:#x}, byte_len {}",
                            static_cast<int>(message.opcode), message.flags, message.byte_len));
  }
  const uint32_t key = notices_[member_].ends[index].keys[static_cast<int>(Key::kWindow)];
  if (invalidates && wc.invalidated_rkey != key) {
    fail(index, fmt::format("invalidated_rkey {:#x} is predicted", key));
  }
  if ((message.flags & IBV_WC_WITH_IMM) != 0 && wc.imm_data != message.immediate) {
    fail(index, fmt::format("imm_data {:#x} is predicted", message.immediate));
  }
}

void Books::take_receive(uint32_t index, const ibv_wc& wc) {
  const EndPlan& plan = life_.ends[index];
  uint32_t slot = 0;
  const uint64_t number = claim(index, wc, &slot);
  if (ends_[index].receives_ended) fail(index, "a message comes after a flushed receive");
  uint32_t from = plan.peer;
  if (plan.type == IBV_QPT_UD) {
    const auto sender = numbers_.find(wc.src_qp);
    if (sender == numbers_.end()) fail(index, "a datagram of no queue pair");
    from = sender->second;
  }
  std::deque<Message>& arriving = model_.end(index).arriving[from];
  if (arriving.empty()) fail(index, fmt::format("queue pair {} has sent no more", from));
  const Message message = std::move(arriving.front());
  arriving.pop_front();
  check_message(index, message, wc);
  const Receive receive =
      receive_of(life_, member_, plan.shared_receives ? kNobody : index, number, slot);
  model_.deliver(member_, receive, plan.type == IBV_QPT_UD ? kGrhBytes : 0, message.bytes);
}

}  // namespace verbena::soft_model
