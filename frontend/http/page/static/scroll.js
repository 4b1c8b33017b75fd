// Follows the end of the growing text until the user scrolls up, and again once the user is back at the end.

const NEAR_PX = 32;

export class Follower {
  constructor(box, latest) {
    Object.assign(this, { box, latest, follows: true, top: 0 });
    box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    latest.onclick = () => this.toEnd();
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    // Growing text moves the end away without scrolling: only scrolling up ends the following.
    if (isAtEnd) this.follows = true;
    else if (scrollTop < this.top) this.follows = false;
    this.top = scrollTop;
    this.latest.hidden = this.follows;
  }

  grown() {
    if (!this.follows) return;
    this.box.scrollTop = this.box.scrollHeight;
    this.top = this.box.scrollTop;  // the user may scroll up before the event of this assignment
  }

  toEnd() {
    this.follows = true;
    this.latest.hidden = true;
    this.grown();
  }
}
