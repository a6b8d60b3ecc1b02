#include "src/device/soft/check/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include "src/device/check_options.h"
#include "src/device/soft/check/caller.h"

namespace verbena::soft::check {
namespace {

// Places of the program, whatever the kind. What comes from further ones is counted.
constexpr size_t kMaxPlaces = 200;

void add_line(std::string& text, const char* name, const std::string& value) {
  if (!value.empty()) text += fmt::format("  {:<9} {}\n", name, value);
}

Finding with_places(Finding finding) {
  if (finding.frames != nullptr) finding.place = place_of(*finding.frames);
  if (finding.other_frames != nullptr) finding.other_place = place_of(*finding.other_frames);
  finding.frames = nullptr;
  finding.other_frames = nullptr;
  return finding;
}

}  // namespace

std::string format_finding(const Finding& finding) {
  std::string text =
      fmt::format("verbena check: {}: {}\n", check_kind_name(finding.kind), finding.what);
  add_line(text, "object:", finding.object);
  if (finding.place != nullptr) add_line(text, "at:", describe_place(finding.place));
  if (finding.other_place != nullptr) {
    add_line(text, (finding.other + ":").c_str(), describe_place(finding.other_place));
  }
  add_line(text, "hardware:", finding.hardware);
  add_line(text, "remedy:", finding.remedy);
  return text;
}

Reports::Reports(CheckOptions options) : options_(std::move(options)), fd_(STDERR_FILENO) {
  if (!options_.log_path.empty()) {
    fd_ = open_check_log(options_.log_path.c_str());
    if (const int moved = duplicate_out_of_the_way(fd_); moved >= 0) {
      close(fd_);
      fd_ = moved;
    }
  }
  file_ = KnownFile(fd_);
}

void Reports::print(const std::string& text) {
  if (!file_.is_at(fd_)) return;
  [[maybe_unused]] const ssize_t written = write(fd_, text.data(), text.size());
}

void Reports::add(const Finding& finding) {
  if (!wants(finding.kind)) return;
  if (finding.frames != nullptr || finding.other_frames != nullptr) {
    add(with_places(finding));
    return;
  }
  bool first = false;
  {
    const std::lock_guard guard(mutex_);
    ++count_;
    const Place place{finding.kind, finding.place, finding.other_place};
    if (const auto found = counts_.find(place); found != counts_.end()) {
      ++found->second;
    } else if (counts_.size() < kMaxPlaces) {
      counts_[place] = 1;
      first = true;
    } else {
      ++unprinted_;
    }
  }
  if (first) print(format_finding(finding));
}

uint64_t Reports::count() const {
  const std::lock_guard guard(mutex_);
  return count_;
}

void Reports::finish() {
  std::map<Place, uint64_t> counts;
  uint64_t unprinted = 0;
  {
    const std::lock_guard guard(mutex_);
    counts = counts_;
    unprinted = unprinted_;
  }
  std::string text;
  for (const auto& [place, count] : counts) {
    if (count < 2) continue;
    text += fmt::format("verbena check: {}: {} more of it, at {}\n", check_kind_name(place.kind),
                        count - 1, describe_place(place.place));
  }
  if (unprinted != 0) {
    text += fmt::format("verbena check: {} findings at further places (it prints {} places)\n",
                        unprinted, kMaxPlaces);
  }
  if (!text.empty()) print(text);
}

void Reports::start_anew() {
  counts_.clear();
  count_ = 0;
  unprinted_ = 0;
}

}  // namespace verbena::soft::check
